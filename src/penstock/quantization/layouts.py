"""Writes integers of matrices as other programs read them; `quantization.grouped` reads the same layouts back."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.quantization.grouped import Grouped
from penstock.quantization.rtn import Grid
from penstock.quantization.scaled import RowBytes

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Layout:
    """One way of storing matrices.

    Attributes:
        tensors: (module, matrix, its grid) to the tensors that stand for the module's weight, by name.
        config: what config.json says under `quantization_config` of the modules that have each grid, of the head, and
            of those in blocks that are not rounded.
        bits: of integers that it can have.
    """

    tensors: Callable[[str, Grouped, Grid], dict[str, Tensor]]
    config: Callable[[Mapping[Grid, Sequence[str]], str, Sequence[str]], dict[str, Any]]
    bits: tuple[int, ...]


def words(integers: Tensor, bits: int) -> Tensor:
    """int32 [rows, words] of uint8 [rows, count]: one stream of bits a row, the lowest first, filled up with zeros."""
    rows, count = integers.shape
    length = -(-count * bits // 32) * 4
    if 8 % bits == 0:
        each = 8 // bits
        padded = torch.zeros(rows, length * each, dtype=torch.uint8)
        padded[:, :count] = integers
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        # Places do not overlap, so their sum is all of them together.
        raw = (padded.view(rows, length, each) << shifts).sum(2, dtype=torch.uint8)
    else:
        begins = torch.arange(count) * bits
        wide = integers.long() << (begins % 8)
        bytes_ = torch.zeros(rows, length + 1, dtype=torch.int64)
        bytes_.index_add_(1, begins // 8, wide & 255)
        bytes_.index_add_(1, begins // 8 + 1, wide >> 8)
        raw = bytes_[:, :length].to(torch.uint8)
    return raw.contiguous().view(torch.int32)


def _zeros(matrix: Grouped) -> Tensor:
    """uint8 [outputs, groups]."""
    if matrix.zeros is None:
        return torch.full(matrix.scales.shape, matrix.middle, dtype=torch.uint8)
    return matrix.zeros.to(torch.uint8)


def _compressed(module: str, matrix: Grouped, grid: Grid) -> dict[str, Tensor]:
    found = {
        f"{module}.weight_packed": words(matrix.integers, grid.bits),
        f"{module}.weight_scale": matrix.scales,
        f"{module}.weight_shape": torch.tensor(matrix.integers.shape),
    }
    zeros = _zeros(matrix)
    if not bool((zeros == grid.middle).all()):
        found[f"{module}.weight_zero_point"] = words(zeros.T.contiguous(), grid.bits).T.contiguous()
    return found


def _compressed_config(grids: Mapping[Grid, Sequence[str]], head: str, kept: Sequence[str]) -> dict[str, Any]:
    groups = {}
    for number, (grid, modules) in enumerate(grids.items()):
        weights = {
            "num_bits": grid.bits,
            "type": "int",
            "symmetric": grid.symmetric,
            "strategy": "group" if grid.group else "channel",
            "group_size": grid.group or None,
            "dynamic": False,
        }
        targets = ["Linear"] if len(grids) == 1 else list(modules)
        groups[f"group_{number}"] = {"targets": targets, "weights": weights, "input_activations": None}
    return _compressed_groups("pack-quantized", groups, (head, *kept))


def _compressed_groups(format_: str, groups: dict[str, Any], kept: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(kept),
    }


def byte_tensors(module: str, matrix: RowBytes) -> dict[str, Tensor]:
    """compressed-tensors' of a matrix of bytes, by name."""
    return {f"{module}.weight": matrix.values, f"{module}.weight_scale": matrix.scales}


def byte_config(values: torch.dtype, head: str, kept: Sequence[str]) -> dict[str, Any]:
    """What config.json says of matrices of int8 or float8; activations are rounded to the same, token by token.

    `head` and `kept` are the modules that are not rounded.
    """
    kind = {"num_bits": 8, "type": "int" if values is torch.int8 else "float", "symmetric": True}
    weights = {**kind, "strategy": "channel", "dynamic": False}
    activations = {**kind, "strategy": "token", "dynamic": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}
    return _compressed_groups("int-quantized" if values is torch.int8 else "float-quantized", groups, (head, *kept))


def _gptq(module: str, matrix: Grouped, grid: Grid) -> dict[str, Tensor]:
    inputs, groups = matrix.integers.shape[1], matrix.scales.shape[1]
    zeros = words(_zeros(matrix).T.contiguous(), grid.bits)
    if grid.symmetric:
        # The first version of the format has zeros less one. Programs do not agree on what that makes of 0, so the
        # second one is written where zeros may be 0.
        ones = sum(1 << place for place in range(0, 32, grid.bits))
        zeros = ((zeros.long() - ones) & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)
    return {
        f"{module}.qweight": words(matrix.integers, grid.bits).T.contiguous(),
        f"{module}.qzeros": zeros,
        f"{module}.scales": matrix.scales.T.contiguous(),
        f"{module}.g_idx": torch.arange(groups, dtype=torch.int32).repeat_interleave(inputs // groups),
    }


def _gptq_config(grids: Mapping[Grid, Sequence[str]], _head: str, kept: Sequence[str]) -> dict[str, Any]:
    (grid,) = grids
    # Programs that round all of a block's projections without being told go by this (GPTQModel's `dynamic`).
    apart: dict[str, Any] = {"dynamic": {f"-:^{re.escape(module)}$": {} for module in kept}} if kept else {}
    return {
        "quant_method": "gptq",
        "bits": grid.bits,
        "group_size": grid.group or -1,
        "desc_act": False,
        "sym": grid.symmetric,
        "checkpoint_format": "gptq" if grid.symmetric else "gptq_v2",
        **apart,
    }


def _awq(module: str, matrix: Grouped, grid: Grid) -> dict[str, Tensor]:
    def ordered(columns: Tensor) -> Tensor:
        eights: Tensor = columns.unflatten(1, (-1, 8))
        return words(eights[..., _AWQ_ORDER].flatten(1), grid.bits)

    return {
        f"{module}.qweight": ordered(matrix.integers.T.contiguous()),
        f"{module}.qzeros": ordered(_zeros(matrix).T.contiguous()),
        f"{module}.scales": matrix.scales.T.contiguous(),
    }


def _awq_config(grids: Mapping[Grid, Sequence[str]], _head: str, kept: Sequence[str]) -> dict[str, Any]:
    (grid,) = grids
    said = {"quant_method": "awq", "bits": 4, "group_size": grid.group or -1, "zero_point": True, "version": "gemm"}
    return {**said, "modules_to_not_convert": list(kept)} if kept else said


LAYOUTS = {
    "compressed-tensors": Layout(_compressed, _compressed_config, (2, 3, 4, 8)),
    "gptq": Layout(_gptq, _gptq_config, (2, 4, 8)),
    "awq": Layout(_awq, _awq_config, (4,)),
}
