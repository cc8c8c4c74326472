"""Weights to integers by rounding to the nearest: the native kernels' fast version, and its meaning in torch."""

import torch
from torch import Tensor

from penstock.kernels.cpu.native import native
from penstock.kernels.cpu.weights import INT4_GROUP, MOST_MULTIPLE, ZERO_AT_SEVEN

# Part of what rounded weights on disk are known by: raise it with every change to what weights are rounded to.
ROUNDING = 3
# The largest magnitude of a group becomes one of these many steps of its scale, with either sign: they are -8..7.
SCALE_STEPS = (-8.5, -8.0, -7.5, -7.0, -6.5, 6.5, 7.0, 7.5, 8.0, 8.5)


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(integers in -127..127 [outputs, inputs], float32 scales [outputs]): scale = max|w| / 127 of each output."""
    integers = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0])
    native.round_int8(weight, integers, scales)
    return integers, scales


def round_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(integers in 0..15 [outputs, inputs], multiples [outputs, groups], scales [outputs]) as `pack_int4` takes them.

    See `reference_int4`.
    """
    outputs, inputs = weight.shape
    integers = torch.empty(weight.shape, dtype=torch.uint8)
    multiples = torch.empty((outputs, -(-inputs // INT4_GROUP)), dtype=torch.uint8)
    scales = torch.empty(outputs)
    native.round_int4(weight, integers, multiples, scales)
    return integers, multiples, scales


def reference_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """What `round_int8` means."""
    largest = weight.float().abs().amax(1)
    # A number over a tensor would be the number times the reciprocal, which rounds twice.
    integers = (weight.float() * (torch.tensor(127.0) / largest)[:, None]).round().nan_to_num()
    return integers.to(torch.int8), largest / 127.0


def reference_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `round_int4` means: each group's own best step, held to a multiple of its output's scale.

    Of a few steps for each group that is wanted which leaves the least squared error. Each is fitted by least squares
    to what it rounds to before it is compared: with integers q, step = Σwq / Σqq takes (Σwq)² / Σqq off the squared
    error. A negative one means integers -7..8. The largest that is wanted becomes the largest multiple of the output's
    scale, and of the two multiples next to what another group wants, the better one is taken.

    An output with one group far larger than the others is rounded as int8 would round it, never much more coarsely.
    """
    outputs, inputs = weight.shape
    groups = -(-inputs // INT4_GROUP)
    padded = torch.zeros(outputs, groups * INT4_GROUP)
    padded[:, :inputs] = weight
    parts = padded.view(outputs, groups, INT4_GROUP)
    largest = parts.abs().amax(2)
    gain, wanted = torch.zeros_like(largest), torch.zeros_like(largest)
    for steps in SCALE_STEPS:
        integers = (parts * (torch.tensor(steps) / largest)[..., None]).round().clamp(-8, 7).nan_to_num()
        along, size = (parts * integers).sum(2), integers.square().sum(2)
        found = (along * (along / size)).nan_to_num()
        wanted = torch.where(found > gain, along / size, wanted)
        gain = torch.maximum(found, gain)
    scales = wanted.abs().amax(1) / MOST_MULTIPLE
    below = (wanted.abs() / scales[:, None]).nan_to_num().floor()
    # In units of the scale even squares of very large and very small values are of a handy size.
    parts = (parts / scales[:, None, None]).nan_to_num(0.0, 0.0, 0.0)
    zeros = torch.where(wanted < 0, 7, 8)[..., None]
    least, nibbles, multiples = torch.full_like(gain, torch.inf), torch.zeros_like(parts), torch.zeros_like(gain)
    for candidate in (below, below + 1):
        times = candidate.clamp(1, MOST_MULTIPLE)
        integers = ((parts / times[..., None]).round() + zeros).clamp(0, 15)
        error = (parts - times[..., None] * (integers - zeros)).square().sum(2)
        better = error < least
        nibbles = torch.where(better[..., None], integers, nibbles)
        multiples = torch.where(better, times, multiples)
        least = torch.minimum(error, least)
    multiples = torch.where(wanted == 0, 0, multiples + ZERO_AT_SEVEN * (wanted < 0))
    return nibbles.view(outputs, -1)[:, :inputs].to(torch.uint8), multiples.to(torch.uint8), scales
