"""A model whose rows all choose one of its experts, beside another one each."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from support.checkpoints import make

EXPERTS = 64


def skewed(folder: Path) -> Path:
    """A model of 64 experts: each row chooses two, and one of them is the same for all."""
    sizes = {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    path = make("deepseek_v3", folder, **sizes)
    (file,) = path.glob("*.safetensors")
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("e_score_correction_bias"):
            tensors[name] = tensor.index_fill(0, torch.tensor([5]), 100.0)
    save_file(tensors, file, {"format": "pt"})
    return path
