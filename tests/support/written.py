"""Checkpoints that `penstock quantize` has written, as plain ones with the numbers that they stand for."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def write_plain(tensors: Mapping[str, Tensor], config: Path, out: Path) -> Path:
    """A checkpoint of one file, with a configuration that says nothing of integers."""
    out.mkdir()
    said = json.loads((config / "config.json").read_text())
    said.pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(said))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    return out


def with_stacked_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Experts as transformers' Gemma 4 has them: gates and ups of a layer's as one tensor, and its ways back."""
    found, experts = dict[str, Tensor](), dict[str, dict[tuple[int, str], Tensor]]()
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if match is None:
            found[name] = tensor
        else:
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
    for name, parts in experts.items():
        each = range(len(parts) // 3)
        both = [torch.cat([parts[expert, "gate"], parts[expert, "up"]]) for expert in each]
        found[f"{name}.gate_up_proj"] = torch.stack(both)
        found[f"{name}.down_proj"] = torch.stack([parts[expert, "down"] for expert in each])
    return found


def all_tensors(folder: Path) -> dict[str, Tensor]:
    """Of all files of a checkpoint."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def numbers_of(folder: Path, bits: int) -> dict[str, Tensor]:
    """What compressed-tensors' words, or int8 by rows, stand for, worked out here; other tensors as they are."""
    tensors, found = all_tensors(folder), dict[str, Tensor]()
    for name, tensor in tensors.items():
        module, _, last = name.rpartition(".")
        if last == "weight_packed":
            scales = tensors[f"{module}.weight_scale"].float()
            _, inputs = tensors[f"{module}.weight_shape"].tolist()
            each = (tensor[:, :, None] >> torch.arange(0, 32, bits)) & ((1 << bits) - 1)
            integers = each.flatten(1)[:, :inputs] - (1 << (bits - 1))
            found[f"{module}.weight"] = integers * scales.repeat_interleave(inputs // scales.shape[1], dim=1)
        elif last == "weight" and f"{name}_scale" in tensors:
            found[name] = tensor.float() * tensors[f"{name}_scale"]
        elif last not in ("weight_scale", "weight_shape"):
            found[name] = tensor
    return found
