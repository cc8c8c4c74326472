"""Linear weights packed for the native kernels; native/src/formats.hpp has the layouts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.kernels.cpu.form import BLOCK_FORMATS, GROUPED_FORMATS, Form, NativeForm
from penstock.kernels.cpu.memory import PageArena
from penstock.kernels.cpu.native import native

# Part of what packed weights on disk are known by: raise it with every change to what native/src/formats.cpp writes,
# so that files of the layout before are packed anew.
PACKED_LAYOUT = 3
# Inputs of an int4 weight that share a multiple, the largest multiple, and the bit beside it that moves the zero.
INT4_GROUP = 32
MOST_MULTIPLE = 15
ZERO_AT_SEVEN = 16
_ARENA = PageArena()


@dataclass(frozen=True, slots=True, eq=False)
class NativeLinear:
    """A packed weight of shape (outputs, inputs).

    Attributes:
        handles: what the kernels take, for the outputs of each form in turn; they read from `memory`.
    """

    handles: "tuple[native.Weight, ...]"
    memory: Tensor
    shape: tuple[int, int]
    form: Form

    @property
    def handle(self) -> "native.Weight":
        """The one handle of a weight that has one form."""
        (handle,) = self.handles
        return handle


def empty(form: Form, shape: tuple[int, int] | torch.Size) -> NativeLinear:
    """A weight whose handles are still to be filled."""
    outputs, inputs = shape
    return packed_in(_ARENA.take(form.nbytes(outputs, inputs)), form, (outputs, inputs))


def packed_in(memory: Tensor, form: Form, shape: tuple[int, int]) -> NativeLinear:
    """The weight in `memory`: bytes of the packed size that begin at a multiple of 64, such as another's `memory`."""
    outputs, inputs = shape
    handles, first = [], 0
    for part, count in form.pieces(outputs):
        end = first + part.nbytes(count, inputs)
        pages = memory[first:end]
        handles.append(native.Weight(part.format, count, inputs, part.group, part.zero_points, part.ordered, pages))
        first = end
    return NativeLinear(tuple(handles), memory, shape, form)


def pack_dense(weight: Tensor) -> NativeLinear:
    """A float32 or bfloat16 weight [outputs, inputs] in its own precision."""
    packed = empty(NativeForm("float32" if weight.dtype is torch.float32 else "bfloat16"), weight.shape)
    packed.handle.fill_dense(weight.contiguous())
    return packed


def pack_int8(integers: Tensor, scales: Tensor) -> NativeLinear:
    """int8 [outputs, inputs] with float32 scales [outputs]: a weight is scale · integer."""
    packed = empty(NativeForm("int8"), integers.shape)
    packed.handle.fill_int8(integers, scales)
    return packed


def pack_int4(integers: Tensor, multiples: Tensor, scales: Tensor) -> NativeLinear:
    """uint8 [outputs, inputs] in 0..15, uint8 multiples [outputs, groups of INT4_GROUP], float32 scales [outputs].

    A multiple is m in 0..15, plus ZERO_AT_SEVEN where its group's zero is 7 instead of 8: a weight is
    scale · m · (integer − zero).
    """
    packed = empty(NativeForm("int4"), integers.shape)
    packed.handle.fill_int4(integers, multiples, scales)
    return packed


def pack_grouped(
    integers: Tensor,
    scales: Tensor,
    group: int,
    zeros: Tensor | None = None,
    bits: int = 4,
    order: Tensor | None = None,
) -> NativeLinear:
    """uint8 [outputs, inputs] of 2, 3 or 4 bits with float16 or bfloat16 scales [outputs, groups of `group` inputs].

    A weight is scale · (integer − middle), the middle of 4 bits being 8, or with int16 `zeros` [outputs, groups]
    scale · (integer − zero). Group g is of the inputs g · `group` and so on, or those that int32 `order` [inputs] has
    there. Activations are rounded with a scale for each group, too.
    """
    format = GROUPED_FORMATS[bits, str(scales.dtype).removeprefix("torch.")]
    packed = empty(NativeForm(format, group, zeros is not None, order is not None), integers.shape)
    packed.handle.fill_grouped(integers, scales, zeros, order)
    return packed


def pack_blocks(raw: Tensor, kind: str, inputs: int) -> NativeLinear:
    """Rows of GGUF's blocks of a kind, uint8 [outputs, bytes]: weights are their numbers to the bit.

    Activations are rounded with a scale for each block.
    """
    packed = empty(NativeForm(BLOCK_FORMATS[kind]), torch.Size((raw.shape[0], inputs)))
    packed.handle.fill_blocks(raw)
    return packed
