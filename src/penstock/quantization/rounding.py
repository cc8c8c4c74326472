"""Weights to integers by rounding to the nearest: the native kernels' fast version, and its meaning in torch."""

import torch
from torch import Tensor

from penstock.kernels.cpu.native import native

INT4_GROUP = 32
# Part of what rounded weights on disk are known by: raise it with every change to what weights are rounded to.
ROUNDING = 1
# The largest magnitude of a group becomes one of these many steps of its scale, with either sign: q is in -8..7.
SCALE_STEPS = (-8.5, -8.0, -7.5, -7.0, -6.5, 6.5, 7.0, 7.5, 8.0, 8.5)


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(integers in -127..127 [outputs, inputs], float32 scales [outputs]): scale = max|w| / 127 of each output."""
    integers = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0])
    native.round_int8(weight, integers, scales)
    return integers, scales


def round_int4(weight: Tensor, group: int = INT4_GROUP) -> tuple[Tensor, Tensor]:
    """(integers in 0..15 [outputs, inputs], float16 scales [outputs, groups]); see `reference_int4`."""
    integers = torch.empty(weight.shape, dtype=torch.uint8)
    scales = torch.empty((weight.shape[0], -(-weight.shape[1] // group)), dtype=torch.float16)
    native.round_int4(weight, group, integers, scales)
    return integers, scales


def reference_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """What `round_int8` means."""
    largest = weight.float().abs().amax(1)
    # A number over a tensor would be the number times the reciprocal, which rounds twice.
    integers = (weight.float() * (torch.tensor(127.0) / largest)[:, None]).round().nan_to_num()
    return integers.to(torch.int8), largest / 127.0


def reference_int4(weight: Tensor, group: int = INT4_GROUP) -> tuple[Tensor, Tensor]:
    """What `round_int4` means: of a few scales for each group the one that leaves the least squared error.

    Each candidate's scale is fitted by least squares to what it rounds to before it is compared: with integers q,
    scale = Σwq / Σqq takes (Σwq)² / Σqq off the squared error.
    """
    outputs, inputs = weight.shape
    groups = -(-inputs // group)
    padded = torch.zeros(outputs, groups * group)
    padded[:, :inputs] = weight
    parts = padded.view(outputs, groups, group)
    largest = parts.abs().amax(2)
    best, scales = torch.zeros_like(largest), torch.zeros_like(largest)
    for steps in SCALE_STEPS:
        integers = (parts * (torch.tensor(steps) / largest)[..., None]).round().clamp(-8, 7).nan_to_num()
        along, size = (parts * integers).sum(2), integers.square().sum(2)
        gain = (along * (along / size)).nan_to_num()
        scales = torch.where(gain > best, along / size, scales)
        best = torch.maximum(gain, best)
    stored = scales.half()
    integers = (parts / stored.float()[..., None]).nan_to_num(0.0, 0.0, 0.0).round().clamp(-8, 7) + 8
    return integers.view(outputs, -1)[:, :inputs].to(torch.uint8), stored
