"""Linear weights as the kernels take them: bytes in a GPU's memory, in the order of outputs."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["int8", "int4", "fp8"]
# The inputs of an int4 row come in runs of this many: the first half of a run are the low nibbles of its bytes.
NIBBLE_RUN = 64
# Kernels are chosen by their number of rows: there is one for up to each of these, and one for more. All are compiled
# before the first request (`runtime/rehearsal.py`).
ROW_STEPS = (16, 64, 128, 255)
# Groups of inputs that share a scale in FP8 have multiples of this size, unless all inputs share one: it is what the
# kernel's products sum at a time.
FP8_GROUP = 128


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLinear:
    """A weight [outputs, inputs] of few bits; a number is scale · (integer - zero).

    Attributes:
        kind: of its numbers: int8, E4M3, or integers in 0..15, two to a byte.
        data: uint8 [outputs, inputs], of int4 [outputs, inputs / 2].
        scales: float32 for fp8, and for int8 whose whole rows share one, else any floating type;
            [outputs / rows, groups].
        zeros: uint8 [outputs, groups], of int4.
        group: how many inputs share a scale; for fp8 all, or a multiple of `FP8_GROUP`.
        shape: (outputs, inputs).
        rows: how many outputs share a scale, 1 for integers.
    """

    kind: Kind
    data: Tensor
    scales: Tensor
    zeros: Tensor | None
    group: int
    shape: tuple[int, int]
    rows: int = 1

    @property
    def whole_rows(self) -> bool:
        """Whether each output has one scale."""
        return self.scales.shape[1] == 1


def int8_linear(integers: Tensor, scales: Tensor) -> DeviceLinear:
    """int8 [outputs, inputs] with float32 scales [outputs]."""
    shape = integers.shape[0], integers.shape[1]
    return DeviceLinear("int8", integers.contiguous().view(torch.uint8), scales.reshape(-1, 1), None, shape[1], shape)


def fp8_linear(values: Tensor, scales: Tensor, rows: int, group: int) -> DeviceLinear:
    """float8_e4m3fn [outputs, inputs] with float32 scales [outputs / rows, inputs / group], both rounded up.

    `group` is the number of inputs, or a multiple of `FP8_GROUP`.
    """
    shape = values.shape[0], values.shape[1]
    data = values.contiguous().view(torch.uint8)
    return DeviceLinear("fp8", data, scales.contiguous(), None, group, shape, rows)


def int4_linear(integers: Tensor, scales: Tensor, zeros: Tensor) -> DeviceLinear:
    """uint8 [outputs, inputs] in 0..15, inputs being a multiple of `NIBBLE_RUN`; scales and zeros [outputs, groups]."""
    outputs, inputs = integers.shape
    halves = integers.view(outputs, -1, 2, NIBBLE_RUN // 2)
    data = (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(outputs, inputs // 2)
    group = inputs // scales.shape[1]
    return DeviceLinear("int4", data, scales.contiguous(), zeros.to(torch.uint8), group, (outputs, inputs))
