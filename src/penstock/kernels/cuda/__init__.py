"""Operations in Triton, for NVIDIA GPUs: the same signatures and cases as on CPUs."""
