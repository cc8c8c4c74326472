"""Keys and values in fewer bits, as the cache may keep them: what they mean, in torch.

Bytes have a scale for each head of each token. Integers of 4 bits, two to a byte, have a scale and a least value for
each 32 of a head's values: a channel that is always large takes precision from the 31 beside it only. Scales for
channels over many tokens, as in KIVI (Liu et al., ICML 2024), would make what is kept of a token depend on others.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.core.kv import KV_GROUP

_KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8", torch.uint8: "int4"}
_MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_MOST_INT4 = 15


def kind_of(planes: Mapping[str, Tensor]) -> str:
    """How a layer's planes keep values: "plain", "int8", "fp8" or "int4"."""
    return _KINDS.get(planes["key"].dtype, "plain")


def raw(plane: Tensor) -> Tensor:
    """A plane of bytes as uint8, with which torch can do more than with what they mean; others as they are."""
    return plane.view(torch.uint8) if plane.itemsize == 1 else plane


def to_bytes(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Heads [..., size] as bytes of `dtype`, and their scales.

    int8 and float8: scales are float32 [...], and the largest value becomes the largest byte. uint8: integers of 4
    bits, [..., size / 2], and bfloat16 [..., 2 · groups], of each group its scale and then its least value. A head that
    is not all finite has scales of NaN, so that whatever is computed of it is seen not to be.
    """
    if dtype is torch.uint8:
        return _to_nibbles(heads)
    wide, most = heads.float(), _MOST[dtype]
    scales = wide.abs().amax(-1) / most
    parts = torch.where(scales[..., None] > 0, wide / scales[..., None], 0.0).clamp(-most, most)
    broken = ~wide.isfinite().all(-1)
    parts = parts.masked_fill(broken[..., None], 0.0)
    return (parts.round() if dtype is torch.int8 else parts).to(dtype), scales.masked_fill(broken, torch.nan)


def _to_nibbles(heads: Tensor) -> tuple[Tensor, Tensor]:
    groups: Tensor = heads.float().unflatten(-1, (-1, KV_GROUP))
    least = groups.amin(-1).bfloat16()
    scales = ((groups.amax(-1) - least.float()) / _MOST_INT4).bfloat16()
    # Groups with a value that is no number, or whose values are further apart than numbers reach.
    broken = ~(scales.isfinite() & least.isfinite()).all(-1)
    wide = scales.float()[..., None]
    parts = torch.where(wide > 0, (groups - least.float()[..., None]) / wide, 0.0).round().clamp(0, _MOST_INT4)
    integers = parts.masked_fill(broken[..., None, None], 0.0).to(torch.uint8).flatten(-2)
    both = torch.stack((scales, least), -1).flatten(-2).masked_fill(broken[..., None], torch.nan)
    return integers[..., ::2] | (integers[..., 1::2] << 4), both


def from_bytes(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What they stand for: bytes times their scales, integers above the least value too, rounded to `dtype` once.

    The native kernels multiply int8 as it is, and the scales later, so that nothing is rounded there.
    """
    if values.dtype is not torch.uint8:
        return (values.float() * scales[..., None]).to(dtype)
    integers: Tensor = torch.stack((values & 15, values >> 4), -1).flatten(-2).unflatten(-1, (-1, KV_GROUP))
    scale, least = scales.float()[..., ::2, None], scales.float()[..., 1::2, None]
    return (integers.float() * scale + least).flatten(-2).to(dtype)
