"""Triton's kernels run on a GPU where there is one; elsewhere Triton interprets them, one program after another."""

import os

import torch

# Triton reads it when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
