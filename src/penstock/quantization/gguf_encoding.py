"""Makes blocks of GGUF files, of integers that are there already or of numbers; `gguf_blocks` says what they stand for.

Q8_0 and Q4_0 have a float16 scale for 32 integers, as groups of a symmetric grid do. The K types have 256 numbers with
scales that are integers themselves: each sub-block gets the scale (and offset) of the least squared error, and is
rounded with what the block has in its place.
"""

import torch
from torch import Tensor

from penstock.quantization.gguf_blocks import Blocks
from penstock.quantization.grouped import Grouped, to_q4_0, to_q8_0

# How much of a sub-block's range the grids that are tried keep.
_SHARES = tuple(1 - 0.04 * step for step in range(10))
_LARGEST_HALF = 65504.0


def of_integers(matrix: Grouped, kind: str) -> Blocks:
    """Integers in whole groups of 32 with float16 scales, as they are: of 8 bits around 128, or of 4 around 8."""
    raw = to_q8_0(matrix) if kind == "Q8_0" else to_q4_0(matrix)
    return Blocks(raw, kind, matrix.integers.shape[1])


def of_numbers(weight: Tensor, kind: str) -> Blocks:
    """`weight` [outputs, inputs] rounded to Q4_K or Q6_K; inputs are a multiple of 256."""
    blocks = weight.float().reshape(-1, 256)
    raw = _q4_k(blocks) if kind == "Q4_K" else _q6_k(blocks)
    return Blocks(raw.view(weight.shape[0], -1), kind, weight.shape[1])


def _q4_k(blocks: Tensor) -> Tensor:
    """[n, 256] to uint8 [n, 144]."""
    parts = blocks.view(-1, 8, 32)
    scales, offsets = _affine(parts)
    scale, offset = _half(scales.amax(1) / 63), _half(offsets.amax(1) / 63)
    within = _ratio(scales, scale[:, None]).round().clamp(0, 63)
    less = _ratio(offsets, offset[:, None]).round().clamp(0, 63)
    integers = _nearest(parts, scale[:, None] * within, offset[:, None] * less).to(torch.uint8)
    nibbles = integers.view(-1, 4, 2, 32)
    packed = (nibbles[:, :, 0] | (nibbles[:, :, 1] << 4)).flatten(1)
    ends = (_bytes(scale.half()[:, None]), _bytes(offset.half()[:, None]))
    return torch.cat((*ends, _in_six_bits(within.to(torch.uint8), less.to(torch.uint8)), packed), dim=1)


def _q6_k(blocks: Tensor) -> Tensor:
    """[n, 256] to uint8 [n, 210]."""
    parts = blocks.view(-1, 16, 16)
    scales = _symmetric(parts)
    scale = _half(scales.abs().amax(1) / 127)
    within = _ratio(scales, scale[:, None]).round().clamp(-128, 127)
    integers = (_ratio(parts, (scale[:, None] * within)[..., None]).round().clamp(-32, 31) + 32).to(torch.uint8)
    low = (integers & 15).view(-1, 2, 2, 64)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    # Places do not overlap, so their sum is all of them together.
    high = ((integers >> 4).view(-1, 2, 4, 32) << shifts).sum(2, dtype=torch.uint8)
    packed = (low[:, :, 0] | (low[:, :, 1] << 4)).flatten(1)
    return torch.cat((packed, high.flatten(1), _bytes(within.to(torch.int8)), _bytes(scale.half()[:, None])), dim=1)


def _affine(parts: Tensor) -> tuple[Tensor, Tensor]:
    """For each sub-block [..., size] the scale and offset, none below 0, with which integers of 4 bits miss least."""
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    best, scales, offsets = torch.full_like(low, torch.inf), torch.zeros_like(low), -low
    for share in _SHARES:
        scale, offset = _refitted(parts, (high - low) * (share / 15), -low * share)
        change = scale[..., None] * _nearest(parts, scale, offset) - offset[..., None] - parts
        error = change.square_().sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        scales, offsets = torch.where(better, scale, scales), torch.where(better, offset, offsets)
    return scales, offsets


def _refitted(parts: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Of all scales and offsets, those of the least squares for the integers that the given ones lead to."""
    integers = _nearest(parts, scale, offset)
    mean, at = integers.mean(-1), parts.mean(-1)
    spread = (integers.square().mean(-1) - mean.square()).clamp(min=0)
    together = (integers * parts).mean(-1) - mean * at
    fits = (spread > 1e-6) & (together > 0)
    scale = torch.where(fits, together / spread, scale)
    return scale, torch.where(fits, scale * mean - at, offset).clamp(min=0)


def _nearest(parts: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return _ratio(parts + offset[..., None], scale[..., None]).round_().clamp_(0, 15)


def _symmetric(parts: Tensor) -> Tensor:
    """For each sub-block [..., size] the scale, of either sign, with which integers from -32 to 31 miss least."""
    # There is one integer more below 0, which the largest gets.
    extreme = parts.gather(-1, parts.abs().argmax(-1, keepdim=True)).squeeze(-1)
    best, scales = torch.full_like(extreme, torch.inf), torch.zeros_like(extreme)
    for share in _SHARES:
        scale = extreme * (share / -32)
        integers = _ratio(parts, scale[..., None]).round_().clamp_(-32, 31)
        scale = _ratio((integers * parts).sum(-1), integers.square().sum(-1))
        error = (scale[..., None] * integers - parts).square_().sum(-1)
        better = error < best
        best, scales = torch.where(better, error, best), torch.where(better, scale, scales)
    return scales


def _in_six_bits(scales: Tensor, offsets: Tensor) -> Tensor:
    """uint8 [n, 8] each to the 12 bytes that have both."""
    first = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    second = offsets[:, :4] | ((offsets[:, 4:] >> 4) << 6)
    third = (scales[:, 4:] & 15) | ((offsets[:, 4:] & 15) << 4)
    return torch.cat((first, second, third), dim=1)


def _half(scale: Tensor) -> Tensor:
    """As float16 has it, in float32."""
    return scale.clamp(max=_LARGEST_HALF).half().float()


def _ratio(over: Tensor, under: Tensor) -> Tensor:
    """0 where there is nothing to divide by."""
    return torch.where(under == 0, 0.0, over / torch.where(under == 0, 1.0, under))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
