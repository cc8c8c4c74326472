"""The numbers that blocks of GGUF files stand for.

Layouts as in ggml (`ggml-common.h`). A block holds integers, a scale in float16, and for some types an offset; K types
hold 256 numbers in sub-blocks of 16 or 32, whose scales are integers themselves, times the block's.

Every number is (scale · sub-scale) · integer - offset · sub-offset in float32, rounded after each operation, so that
it is the same wherever it is made.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.quantization.gguf_types import BLOCK_TYPES

# What a nibble of the non-linear types means; of MXFP4 twice that (OCP Microscaling Formats, 2023, section 5.3.3).
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _float16(raw: Tensor) -> Tensor:
    """Two bytes of each block as a column of float32."""
    return raw.contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] bytes to [..., 2 n]: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _bits(packed: Tensor) -> Tensor:
    """[count, n] bytes to their [count, 8 n] bits, the lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed[:, :, None] >> shifts) & 1).flatten(1)


def _f32(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float32)


def _bf16(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.bfloat16).float()


def _q4_0(raw: Tensor) -> Tensor:
    return (_nibbles(raw[:, 2:]).float() - 8) * _float16(raw[:, :2])


def _q4_1(raw: Tensor) -> Tensor:
    return _nibbles(raw[:, 4:]).float() * _float16(raw[:, :2]) + _float16(raw[:, 2:4])


def _q5_0(raw: Tensor) -> Tensor:
    integers = _nibbles(raw[:, 6:]) | (_bits(raw[:, 2:6]) << 4)
    return (integers.float() - 16) * _float16(raw[:, :2])


def _q5_1(raw: Tensor) -> Tensor:
    integers = _nibbles(raw[:, 8:]) | (_bits(raw[:, 4:8]) << 4)
    return integers.float() * _float16(raw[:, :2]) + _float16(raw[:, 2:4])


def _q8_0(raw: Tensor) -> Tensor:
    return raw[:, 2:].contiguous().view(torch.int8).float() * _float16(raw[:, :2])


def _pairs(packed: Tensor) -> Tensor:
    """[count, 64] bytes to [count, 2, 4, 32] integers of two bits: of each half 32 for each of four shifts."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    halves: Tensor = packed.unflatten(1, (2, 1, 32))
    return (halves >> shifts) & 3


def _scaled(integers: Tensor, scales: Tensor, scale: Tensor) -> Tensor:
    """[count, 256] numbers of signed `integers`, in one sub-block for each of the `scales` [count, sub-blocks]."""
    factors = scale * scales.float()
    return (factors[:, :, None] * integers.float().reshape(*factors.shape, -1)).flatten(1)


def _less(numbers: Tensor, offsets: Tensor, offset: Tensor) -> Tensor:
    """The same less each sub-block's offset."""
    less = offset * offsets.float()
    parts: Tensor = numbers.unflatten(1, (less.shape[1], -1))
    return (parts - less[:, :, None]).flatten(1)


def _q2_k(raw: Tensor) -> Tensor:
    scales = raw[:, :16]
    numbers = _scaled(_pairs(raw[:, 16:80]), scales & 15, _float16(raw[:, 80:82]))
    return _less(numbers, scales >> 4, _float16(raw[:, 82:84]))


def _q3_k(raw: Tensor) -> Tensor:
    packed = raw[:, 96:108]
    low = _nibbles(packed[:, :8])
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = ((packed[:, None, 8:] >> shifts) & 3).flatten(1)
    scales = (low | (high << 4)).to(torch.int16) - 32
    # A high bit that is not set takes 4 off; the bits of a byte belong to 32 numbers each, in order.
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = ((raw[:, None, :32] >> shifts) & 1).flatten(1)
    integers = _pairs(raw[:, 32:96]).flatten(1).to(torch.int16) - 4 * (1 - high.to(torch.int16))
    return _scaled(integers, scales, _float16(raw[:, 108:110]))


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and offsets [count, 8] of six bits each in 12 bytes."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=1)
    offsets = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales, offsets


def _q4_k(raw: Tensor) -> Tensor:
    scales, offsets = _six_bits(raw[:, 4:16])
    integers = _nibbles(raw[:, 16:].unflatten(1, (4, 32)))
    return _less(_scaled(integers, scales, _float16(raw[:, :2])), offsets, _float16(raw[:, 2:4]))


def _q5_k(raw: Tensor) -> Tensor:
    scales, offsets = _six_bits(raw[:, 4:16])
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (raw[:, None, 16:48] >> shifts) & 1
    integers = _nibbles(raw[:, 48:].unflatten(1, (4, 32))).flatten(1) | (high.flatten(1) << 4)
    return _less(_scaled(integers, scales, _float16(raw[:, :2])), offsets, _float16(raw[:, 2:4]))


def _q6_k(raw: Tensor) -> Tensor:
    low = _nibbles(raw[:, :128].unflatten(1, (2, 64))).flatten(1)
    integers = low | (_pairs(raw[:, 128:192]).flatten(1) << 4)
    scales = raw[:, 192:208].contiguous().view(torch.int8)
    return _scaled(integers.to(torch.int16) - 32, scales, _float16(raw[:, 208:210]))


def _looked_up(table: tuple[int, ...], nibbles: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.int16)[nibbles.long()]


def _iq4_nl(raw: Tensor) -> Tensor:
    return _looked_up(_IQ4, _nibbles(raw[:, 2:])).float() * _float16(raw[:, :2])


def _mxfp4(raw: Tensor) -> Tensor:
    halves = torch.ldexp(torch.ones(()), raw[:, :1].float() - 128)
    return _looked_up(_FP4, _nibbles(raw[:, 1:])).float() * halves


def _iq4_xs(raw: Tensor) -> Tensor:
    low = torch.stack((raw[:, 4:8] & 15, raw[:, 4:8] >> 4), dim=2).flatten(1)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    high = ((raw[:, 2:4, None] >> shifts) & 3).flatten(1)
    scales = (low | (high << 4)).to(torch.int16) - 32
    integers = _looked_up(_IQ4, _nibbles(raw[:, 8:].unflatten(1, (8, 16))))
    return _scaled(integers, scales, _float16(raw[:, :2]))


_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": _float16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Rows of whole blocks of a kind: `raw` is uint8 [outputs, bytes], a row has `inputs` numbers."""

    raw: Tensor
    kind: str
    inputs: int

    def numbers(self) -> Tensor:
        """The matrix [outputs, inputs] in float32."""
        return dequantize(self.raw, self.kind)

    def rows(self, which: slice | Tensor) -> "Blocks":
        """The blocks of some of the outputs, or of all in another order."""
        return Blocks(self.raw[which], self.kind, self.inputs)

    def columns(self, first: int, count: int) -> "Blocks":
        """Some of the inputs, in whole blocks."""
        kind = BLOCK_TYPES[self.kind]
        if first % kind.elements or count % kind.elements:
            raise ValueError(f"The inputs from {first} to {first + count} are no whole blocks of {kind.elements}.")
        begin, size = first // kind.elements * kind.nbytes, count // kind.elements * kind.nbytes
        return Blocks(self.raw[:, begin : begin + size], self.kind, count)


def dequantize(raw: Tensor, kind: str) -> Tensor:
    """The float32 numbers [rows, columns] in rows of whole blocks, `raw` [rows, bytes] of uint8."""
    blocks = raw.reshape(-1, BLOCK_TYPES[kind].nbytes)
    return _DECODERS[kind](blocks).view(raw.shape[0], -1)


def mxfp4_blocks(nibbles: Tensor, exponents: Tensor) -> Tensor:
    """Blocks of MXFP4 as ggml has them, [rows, bytes], of those that gpt-oss's files have.

    Args:
        nibbles: uint8 [rows, blocks, 16]; the low half of each is the number before that of its high half.
        exponents: uint8 [rows, blocks].
    """
    every = torch.stack((nibbles & 15, nibbles >> 4), dim=3).flatten(2)
    halves = every[:, :, :16] | (every[:, :, 16:] << 4)
    return torch.cat((exponents[:, :, None], halves), dim=2).flatten(1)
