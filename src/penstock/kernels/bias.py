"""What attention within rows adds to scores by distances, as a table."""

import math

import torch
from torch import Tensor

from penstock.kernels.dispatch import Binding
from penstock.kernels.places import BucketBias
from penstock.kernels.signature import RowAttention


def bias_table(op: RowAttention, binding: Binding) -> Tensor | None:
    """float32 [query heads, 2 · reach + 1], for keys from `reach` before a query to as far behind it; None: nothing.

    Keys that are farther away get what the farthest do.
    """
    bias, heads = op.bias, op.heads.query_heads
    if bias is None:
        return None
    distances = torch.arange(-bias.farthest, bias.farthest + 1)
    if isinstance(bias, BucketBias):
        return binding.tensor(bias.weight).float()[buckets(distances, bias)].T.contiguous()
    return torch.tensor(slopes(heads), dtype=torch.float32)[:, None] * -distances.abs().float()


def buckets(distances: Tensor, bias: BucketBias) -> Tensor:
    """The bucket of each distance, which is a key's position less its query's."""
    half, away = bias.buckets // 2, distances.abs()
    exact = half // 2
    # In float32 and cut off, as everybody computes it: the border of a bucket depends on it.
    grown = torch.log(away.float().clamp(min=1) / exact) / math.log(bias.farthest / exact) * (half - exact)
    far = (exact + grown.to(torch.int64)).clamp(max=half - 1)
    return torch.where(away < exact, away, far) + half * (distances > 0)


def slopes(heads: int) -> list[float]:
    """How much each position costs, for each head."""
    below = 2 ** math.floor(math.log2(heads))
    found = [2.0 ** (-8.0 / below * (head + 1)) for head in range(below)]
    above = [2.0 ** (-4.0 / below * (head + 1)) for head in range(2 * below)]
    return [*found, *above[::2]][:heads]
