"""Weights as integers with a scale and a zero for each group of inputs, and the ways checkpoints store them.

GPTQ and AWQ have words of 32 bits along an input or an output (AutoGPTQ, AutoAWQ), compressed-tensors along the inputs
of an output. All three are one stream of bits a row, the lowest first, so one function reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Where AWQ's words have each of eight columns.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
# Numbers that are made at a time, beside all of them.
_AT_ONCE = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """A matrix [outputs, inputs]: each weight is scale · (integer - zero), rounded once to float32.

    Attributes:
        integers: uint8 [outputs, inputs].
        scales: of any floating type, [outputs, groups].
        zeros: int16 [outputs, groups]; None where all are `middle`.
        group_of: int64 [inputs], the group of each input; None where groups are equal runs of them, in order.
        bits: which integers there can be.
    """

    integers: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    group_of: Tensor | None = None
    bits: int = 4

    @property
    def middle(self) -> int:
        """The zero where none is given."""
        return 1 << (self.bits - 1)

    def numbers(self) -> Tensor:
        """The matrix [outputs, inputs] in float32."""
        outputs, inputs = self.integers.shape
        found = torch.empty(outputs, inputs)
        step = max(1, _AT_ONCE // max(inputs, 1))
        for first in range(0, outputs, step):
            rows = slice(first, first + step)
            zeros: Tensor | int = self.middle if self.zeros is None else self._spread(self.zeros[rows])
            scales = self._spread(self.scales[rows].float())
            torch.mul((self.integers[rows].to(torch.int16) - zeros).float(), scales, out=found[rows])
        return found

    def order(self) -> Tensor | None:
        """int32 [inputs], the inputs of the first group, of the second and so on; None where they stand so."""
        return None if self.group_of is None else self.group_of.argsort(stable=True).to(torch.int32)

    def rows(self, which: slice | Tensor) -> "Grouped":
        """The integers, scales and zeros of some of the outputs, or of all in another order."""
        zeros = None if self.zeros is None else self.zeros[which]
        return Grouped(self.integers[which], self.scales[which].contiguous(), zeros, self.group_of, self.bits)

    def columns(self, first: int, count: int) -> "Grouped":
        """Some of the inputs, in whole groups that stand in order."""
        group = self.integers.shape[1] // self.scales.shape[1]
        if self.group_of is not None or first % group or count % group:
            raise ValueError(f"The inputs from {first} to {first + count} are no whole groups of {group}.")
        inputs, groups = slice(first, first + count), slice(first // group, (first + count) // group)
        zeros = None if self.zeros is None else self.zeros[:, groups].contiguous()
        return Grouped(self.integers[:, inputs], self.scales[:, groups].contiguous(), zeros, None, self.bits)

    def _spread(self, of_groups: Tensor) -> Tensor:
        """[rows, groups] to [rows, inputs]."""
        if self.group_of is not None:
            return of_groups[:, self.group_of]
        return of_groups.repeat_interleave(self.integers.shape[1] // of_groups.shape[1], dim=1)


def stacked(parts: Sequence[Grouped]) -> Grouped:
    """Matrices with the same bits, inputs and groups, one below the other."""
    if len(parts) == 1:
        return parts[0]
    zeros = None
    if any(part.zeros is not None for part in parts):
        each = (torch.full(part.scales.shape, part.middle) if part.zeros is None else part.zeros for part in parts)
        zeros = torch.cat(list(each)).to(torch.int16)
    integers, scales = torch.cat([part.integers for part in parts]), torch.cat([part.scales for part in parts])
    return Grouped(integers, scales, zeros, parts[0].group_of, parts[0].bits)


def unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` integers of `bits` each, uint8 [rows, count], in int32 words [rows, any]."""
    raw = words.contiguous().view(torch.uint8)
    if bits == 8:
        return raw[:, :count]
    if bits in (1, 2, 4):
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        return ((raw[:, :, None] >> shifts) & ((1 << bits) - 1)).flatten(1)[:, :count]
    # An integer may lie in two bytes.
    begins = torch.arange(count) * bits
    low, high = begins // 8, (begins // 8 + 1).clamp(max=raw.shape[1] - 1)
    pairs = raw[:, low].to(torch.int32) | (raw[:, high].to(torch.int32) << 8)
    return ((pairs >> (begins % 8)) & ((1 << bits) - 1)).to(torch.uint8)


def from_gptq(
    weights: Tensor, zeros: Tensor, scales: Tensor, group_of: Tensor | None, bits: int, *, zeros_less_one: bool
) -> Grouped:
    """GPTQ's int32 words: weights [inputs · bits / 32, outputs], zeros [groups, outputs · bits / 32].

    Args:
        weights, zeros: words of integers of `bits` each.
        scales: [groups, outputs].
        group_of: [inputs]; None where groups are in order.
        bits: of an integer.
        zeros_less_one: whether zeros were stored less 1, as the first version of the format has them.
    """
    outputs = scales.shape[1]
    inputs = weights.shape[0] * 32 // bits
    if zeros_less_one and 32 % bits == 0:
        # The 1 was taken off whole words, where a zero of 0 borrows from its neighbour.
        ones = sum(1 << place for place in range(0, 32, bits))
        zeros = ((zeros.long() + ones) & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)
    found = unpacked(zeros, bits, outputs).to(torch.int16)
    if zeros_less_one and 32 % bits:
        found = (found + 1) & ((1 << bits) - 1)
    return Grouped(
        unpacked(weights.T, bits, inputs),
        scales.T.contiguous(),
        found.T.contiguous(),
        group_of,
        bits,
    )


def from_awq(weights: Tensor, zeros: Tensor, scales: Tensor) -> Grouped:
    """AWQ's int32 words of eight columns: weights [inputs, outputs / 8], zeros [groups, outputs / 8]."""
    outputs = scales.shape[1]
    return Grouped(
        _in_order(unpacked(weights, 4, outputs)).T.contiguous(),
        scales.T.contiguous(),
        _in_order(unpacked(zeros, 4, outputs)).T.to(torch.int16).contiguous(),
    )


def _in_order(columns: Tensor) -> Tensor:
    eights: Tensor = columns.unflatten(1, (-1, 8))
    return eights[..., _AWQ_PLACES].flatten(1)


def from_packed(
    weights: Tensor, zeros: Tensor | None, scales: Tensor, group_of: Tensor | None, bits: int, inputs: int
) -> Grouped:
    """compressed-tensors' int32 words: weights [outputs, words], zeros [words, groups]; integers are above their least.

    `zeros` are those of integers from -2^(bits - 1) on, which None has at 0.
    """
    above: Tensor | None = None
    if zeros is not None:
        above = unpacked(zeros.T, bits, scales.shape[0]).T.to(torch.int16).contiguous()
    return Grouped(unpacked(weights, bits, inputs), scales, above, group_of, bits)


def from_affine(weights: Tensor, scales: Tensor, biases: Tensor, bits: int) -> Tensor:
    """MLX's words [outputs, inputs · bits / 32]: float32 [outputs, inputs], each scale · integer + bias.

    Biases are numbers, no multiples of their scales, so that the integers have no zeros of their own.
    """
    (outputs, groups), inputs = scales.shape, weights.shape[1] * 32 // bits
    found = torch.empty(outputs, groups, inputs // groups)
    step = max(1, _AT_ONCE // max(inputs, 1))
    for first in range(0, outputs, step):
        rows = slice(first, first + step)
        integers = unpacked(weights[rows], bits, inputs).view(-1, groups, inputs // groups).float()
        spread = (biases[rows].float()[:, :, None], scales[rows].float()[:, :, None])
        torch.addcmul(spread[0], integers, spread[1], out=found[rows])
    return found.flatten(1)


def to_q8_0(matrix: Grouped) -> Tensor:
    """Integers of 8 bits around 128, in whole groups of 32 with float16 scales, as GGUF's Q8_0: uint8 [outputs, bytes].

    Each block is a scale and 32 signed integers; the numbers are the same.
    """
    # Flipping the highest bit takes 128 off.
    return _behind_scales(matrix, (matrix.integers ^ 128).unflatten(1, (-1, 32)))


def to_q4_0(matrix: Grouped) -> Tensor:
    """Integers of 4 bits around 8, in whole groups of 32 with float16 scales, as GGUF's Q4_0; see `from_q4_0`."""
    halves: Tensor = matrix.integers.unflatten(1, (-1, 2, 16))
    return _behind_scales(matrix, halves[:, :, 0] | (halves[:, :, 1] << 4))


def _behind_scales(matrix: Grouped, packed: Tensor) -> Tensor:
    """[outputs, blocks, bytes] of 32 integers each behind its scale: uint8 [outputs, bytes]."""
    scales = matrix.scales.repeat_interleave(packed.shape[1] // matrix.scales.shape[1], dim=1)
    return torch.cat((scales[:, :, None].contiguous().view(torch.uint8), packed), dim=2).flatten(1)


def from_q4_0(raw: Tensor) -> Grouped:
    """GGUF's Q4_0 blocks, uint8 [outputs, bytes]: a float16 scale and 32 integers in the halves of 16 bytes."""
    blocks: Tensor = raw.unflatten(1, (-1, 18))
    halves = blocks[..., 2:]
    integers = torch.cat((halves & 15, halves >> 4), dim=2).flatten(1)
    return Grouped(integers, blocks[..., :2].contiguous().view(torch.float16).squeeze(2))
