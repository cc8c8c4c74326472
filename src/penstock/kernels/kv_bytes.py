"""Keys and values as bytes, with a scale for each head of each token: what they mean, in torch."""

import torch
from torch import Tensor

_KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
_MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def kind_of(planes: tuple[Tensor, ...]) -> str:
    """How a layer's planes keep values: "plain", "int8" or "fp8"."""
    return _KINDS.get(planes[0].dtype, "plain")


def raw(plane: Tensor) -> Tensor:
    """A plane of bytes as uint8, with which torch can do more than with what they mean; others as they are."""
    return plane.view(torch.uint8) if plane.itemsize == 1 else plane


def to_bytes(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Heads [..., size] as bytes of `dtype`, and their scales, float32 [...]: the largest becomes the largest byte.

    A head that is not all finite has a scale of NaN, so that whatever is computed of it is seen not to be.
    """
    wide, most = heads.float(), _MOST[dtype]
    scales = wide.abs().amax(-1) / most
    parts = torch.where(scales[..., None] > 0, wide / scales[..., None], 0.0).clamp(-most, most)
    broken = ~wide.isfinite().all(-1)
    parts = parts.masked_fill(broken[..., None], 0.0)
    return (parts.round() if dtype is torch.int8 else parts).to(dtype), scales.masked_fill(broken, torch.nan)


def from_bytes(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention reads: bytes [..., size] times scales [...], rounded to `dtype` once."""
    return (values.float() * scales[..., None]).to(dtype)
