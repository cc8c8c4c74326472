"""What attention adds to scores by distances, as a table."""

import math

import torch
from torch import Tensor

from penstock.kernels.dispatch import Binding
from penstock.kernels.places import BucketBias
from penstock.kernels.signature import Attention, RowAttention


def bias_table(op: Attention | RowAttention, binding: Binding) -> Tensor | None:
    """float32 [query heads, 2 · reach + 1], for keys from `reach` before a query to as far behind it; None: nothing.

    Keys that are farther away get what the farthest do.
    """
    bias = op.bias
    if bias is None:
        return None
    distances = torch.arange(-bias.farthest, bias.farthest + 1)
    return binding.tensor(bias.weight).float()[buckets(distances, bias)].T.contiguous()


def buckets(distances: Tensor, bias: BucketBias) -> Tensor:
    """The bucket of each distance, which is a key's position less its query's.

    Where no keys behind a query are seen, these have the bucket of the query's own position.
    """
    half, away = (bias.buckets // 2, distances.abs()) if bias.behind else (bias.buckets, (-distances).clamp(min=0))
    exact = half // 2
    # In float32 and cut off, as everybody computes it: the border of a bucket depends on it.
    grown = torch.log(away.float().clamp(min=1) / exact) / math.log(bias.farthest / exact) * (half - exact)
    far = (exact + grown.to(torch.int64)).clamp(max=half - 1)
    found = torch.where(away < exact, away, far)
    return found + half * (distances > 0) if bias.behind else found
