"""Linear weights packed for the native kernels; native/src/formats.hpp has the layouts."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from penstock.kernels.cpu.memory import PageArena
from penstock.kernels.cpu.native import native

NativeFormat = Literal["float32", "bfloat16", "int8", "int4", "int4_float16"]
# Part of what packed weights on disk are known by: raise it with every change to what native/src/formats.cpp writes,
# so that files of the layout before are packed anew.
PACKED_LAYOUT = 2
# Inputs of an int4 weight that share a multiple, the largest multiple, and the bit beside it that moves the zero.
INT4_GROUP = 32
MOST_MULTIPLE = 15
ZERO_AT_SEVEN = 16
_ARENA = PageArena()


@dataclass(frozen=True, slots=True, eq=False)
class NativeLinear:
    """A packed weight of shape (outputs, inputs). `handle` is what the kernels take; it reads from `memory`."""

    handle: "native.Weight"
    memory: Tensor
    shape: tuple[int, int]
    format: NativeFormat


def _empty(format: NativeFormat, shape: torch.Size, group: int = 0, zero_points: bool = False) -> NativeLinear:
    outputs, inputs = shape
    memory = _ARENA.take(native.packed_bytes(format, outputs, inputs, group, zero_points))
    return packed_in(memory, format, (outputs, inputs), group, zero_points)


def packed_in(
    memory: Tensor, format: NativeFormat, shape: tuple[int, int], group: int = 0, zero_points: bool = False
) -> NativeLinear:
    """The weight in `memory`: bytes of the packed size that begin at a multiple of 64, such as another's `memory`."""
    return NativeLinear(native.Weight(format, *shape, group, zero_points, memory), memory, shape, format)


def pack_dense(weight: Tensor) -> NativeLinear:
    """A float32 or bfloat16 weight [outputs, inputs] in its own precision."""
    packed = _empty("float32" if weight.dtype is torch.float32 else "bfloat16", weight.shape)
    packed.handle.fill_dense(weight.contiguous())
    return packed


def pack_int8(integers: Tensor, scales: Tensor) -> NativeLinear:
    """int8 [outputs, inputs] in -127..127 with float32 scales [outputs]: a weight is scale · integer."""
    packed = _empty("int8", integers.shape)
    packed.handle.fill_int8(integers, scales)
    return packed


def pack_int4(integers: Tensor, multiples: Tensor, scales: Tensor) -> NativeLinear:
    """uint8 [outputs, inputs] in 0..15, uint8 multiples [outputs, groups of INT4_GROUP], float32 scales [outputs].

    A multiple is m in 0..15, plus ZERO_AT_SEVEN where its group's zero is 7 instead of 8: a weight is
    scale · m · (integer − zero).
    """
    packed = _empty("int4", integers.shape)
    packed.handle.fill_int4(integers, multiples, scales)
    return packed


def pack_int4_float16(integers: Tensor, scales: Tensor, group: int, offsets: Tensor | None = None) -> NativeLinear:
    """uint8 [outputs, inputs] in 0..15 with float16 scales [outputs, groups of `group` inputs].

    A weight is scale · (integer − 8); with `offsets`, of the scales' type and shape, it is scale · integer − offset.
    """
    packed = _empty("int4_float16", integers.shape, group, offsets is not None)
    packed.handle.fill_int4_float16(integers, scales, offsets)
    return packed
