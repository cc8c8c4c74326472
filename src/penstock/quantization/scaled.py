"""Weights whose numbers are kept in a byte or less and multiplied by scales: FP8, and bitsandbytes' tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.kernels.kv_bytes import raw, to_bytes

# Rows of numbers whose scales are spread at a time.
_ROWS = 256


@dataclass(frozen=True, slots=True, eq=False)
class RowBytes:
    """A matrix [outputs, inputs]: each weight is its byte's number times its output's scale.

    Attributes:
        values: int8 or float8_e4m3fn [outputs, inputs].
        scales: float32 [outputs, 1].
    """

    values: Tensor
    scales: Tensor

    def numbers(self) -> Tensor:
        """The matrix [outputs, inputs] in float32."""
        return scaled(self.values, self.scales, (1, self.values.shape[1]))

    def rows(self, which: slice | Tensor) -> "RowBytes":
        """The values and scales of some of the outputs, or of all in another order."""
        return RowBytes(self.values[which].contiguous(), self.scales[which].contiguous())

    def columns(self, first: int, count: int) -> "RowBytes":
        """Some of the inputs, which have their outputs' scales."""
        return RowBytes(self.values[:, first : first + count].contiguous(), self.scales)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Blocks:
    """An E4M3 matrix [outputs, inputs], of whose blocks each has a scale; blocks at the end may be cut off.

    Attributes:
        values: float8_e4m3fn [outputs, inputs].
        scales: float32 [outputs / rows, inputs / group], both rounded up.
        rows, group: the sides of a block.
    """

    values: Tensor
    scales: Tensor
    rows: int
    group: int

    def numbers(self) -> Tensor:
        """The matrix [outputs, inputs] in float32."""
        return scaled(self.values, self.scales, (self.rows, self.group))


def stacked_fp8(parts: Sequence[Fp8Blocks], rows: int) -> Fp8Blocks:
    """Matrices one below the other, as one whose blocks have `rows` rows.

    `rows` divides those of each part, and the outputs of all but the last.
    """
    scales = []
    for part in parts:
        of_row = torch.arange(0, part.values.shape[0], rows) // part.rows
        scales.append(part.scales[of_row])
    values = torch.cat([raw(part.values) for part in parts]).view(torch.float8_e4m3fn)
    return Fp8Blocks(values, torch.cat(scales), rows, parts[0].group)


def row_bytes(weight: Tensor, dtype: torch.dtype) -> RowBytes:
    """`weight` [outputs, inputs] as int8 or float8_e4m3fn; the largest of each output becomes the largest number."""
    values, scales = to_bytes(weight, dtype)
    # An output of nothing but 0 has any scale.
    return RowBytes(values, torch.where(scales > 0, scales, 1.0)[:, None])


def scaled(values: Tensor, scales: Tensor, block: tuple[int, int], zeros: Tensor | None = None) -> Tensor:
    """(values - zeros) [outputs, inputs] times scales, in float32; both are for blocks of `block` rows and columns.

    Blocks at the end may be cut off. A scale for each output has blocks of (1, inputs), a single one of both sides.
    """
    found = values.float()
    rows, columns = block
    outputs, inputs = values.shape
    across = -(-inputs // columns)
    factors = scales.float().reshape(-1, across)
    less = None if zeros is None else zeros.float().reshape(-1, across)
    # At a time, the rows of blocks that are about `_ROWS` rows of numbers, or one row of blocks.
    step = max(1, _ROWS // rows)
    for first in range(0, factors.shape[0], step):
        places = slice(first, first + step)
        strip = found[first * rows : (first + step) * rows]
        if less is not None:
            strip.sub_(_over(less[places], block, strip))
        strip.mul_(_over(factors[places], block, strip))
    return found


def _over(of_blocks: Tensor, block: tuple[int, int], strip: Tensor) -> Tensor:
    """[blocks down, blocks across] to the shape of `strip`."""
    rows, columns = (min(size, side) for size, side in zip(block, strip.shape, strict=True))
    wide = of_blocks.repeat_interleave(columns, dim=1)[:, : strip.shape[1]]
    return wide.repeat_interleave(rows, dim=0)[: strip.shape[0]] if rows > 1 else wide


def from_rows(values: Tensor, largest: Tensor) -> Tensor:
    """int8 [outputs, inputs] whose rows have these largest magnitudes [outputs] at 127, as LLM.int8 multiplies them."""
    return values.float().mul_(largest[:, None]).mul_(1 / 127)


def _spread(of_blocks: Tensor, size: int, count: int) -> Tensor:
    """[blocks] to [count]: each block's number for `size` entries, the last block's for those that are left."""
    return of_blocks.repeat_interleave(min(size, count))[:count]


def from_table(codes: Tensor, table: Tensor, largest: Tensor, block: int) -> Tensor:
    """Four bits for each number, the high half of a byte first: table[code] times its block's largest magnitude.

    Args:
        codes: uint8, in any shape, two numbers in a byte.
        table: float32 [16]: NF4's or FP4's values (Dettmers et al., QLoRA, 2023, appendix E).
        largest: float32 [blocks].
        block: how many numbers one of them is for.
    """
    flat = codes.flatten()
    places = torch.stack((flat >> 4, flat & 15), dim=1).flatten()
    numbers = table.float()[places.long()]
    return numbers.mul_(_spread(largest.float(), block, numbers.shape[0]))


def from_nested(codes: Tensor, table: Tensor, largest: Tensor, block: int, offset: float) -> Tensor:
    """The magnitudes that `from_table` needs, where they are quantized themselves: uint8 codes into a table of 256."""
    numbers = table.float()[codes.flatten().long()]
    return numbers.mul_(_spread(largest.float(), block, numbers.shape[0])).add_(offset)
