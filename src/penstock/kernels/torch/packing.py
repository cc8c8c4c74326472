"""Linear weights repacked once for oneDNN, the matrix code that torch has for processors."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Rows that the layout is chosen for. Weights packed for this many are as fast at one row and at hundreds.
_PACKED_FOR_ROWS = 32


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A linear weight in oneDNN's blocked layout; `data` is opaque, `shape` is (outputs, inputs)."""

    data: Tensor
    shape: tuple[int, int]
    dtype: torch.dtype


def packing_obstacle(dtype: torch.dtype) -> str | None:
    """Why linear weights of `dtype` cannot be packed in this installation, or None where they can."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"there is no packed layout for {dtype}"
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    namespace = torch.ops.mkldnn
    if not hasattr(namespace, "_reorder_linear_weight") or not hasattr(namespace, "_linear_pointwise"):
        return "this version of torch has no operation for packed linear weights"
    if dtype is torch.bfloat16 and not namespace._is_mkldnn_bf16_supported():
        return "this processor has no vector instructions for bfloat16 in oneDNN"
    return None


def pack_linear(weight: Tensor) -> Tensor | PackedLinear:
    """`weight` [outputs, inputs] packed where `packing_obstacle` sees none, else itself."""
    if packing_obstacle(weight.dtype) is not None:
        return weight
    data = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS)
    return PackedLinear(data, (weight.shape[0], weight.shape[1]), weight.dtype)
