"""Rounds weights to integers with a scale, and where asked a zero, for each group of inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.quantization.grouped import Grouped

# How much of a group's range the grids that are tried keep: cutting its ends off can cost less than coarser steps.
_SHARES = tuple(1 - 0.02 * step for step in range(16))
# The least positive normal float16, below which scales would lose their digits.
_LEAST_SCALE = 2.0**-14


@dataclass(frozen=True, slots=True)
class Grid:
    """What weights are rounded to.

    Attributes:
        bits: of an integer.
        group: inputs that share a scale; 0: all of them.
        symmetric: whether a weight of 0 is the middle of all integers; else each group has a zero of its own.
        searched: whether scales are those of the least squared error, of some that cut the largest weights off; else
            they keep every weight within the grid.
    """

    bits: int
    group: int
    symmetric: bool = True
    searched: bool = False

    @property
    def most(self) -> int:
        """The largest integer of this width."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The integer that stands for 0 where the grid is symmetric."""
        return 1 << (self.bits - 1)


def groups_of(inputs: int, grid: Grid) -> int:
    """The number of groups of `inputs` inputs. Raises ValueError where they are not whole groups."""
    if grid.group and inputs % grid.group:
        raise ValueError(f"{inputs} inputs are not in groups of {grid.group}.")
    return inputs // grid.group if grid.group else 1


def fit(weight: Tensor, grid: Grid, metric: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scales, rounded to float16, and zeros, both float32 [rows], for weights [rows, members] of a group each.

    `metric` [groups, members, members] is what an error of each group is judged by, where it is not its square: rows
    are outputs with their groups one after another.
    """
    low, high = weight.amin(1).clamp(max=0), weight.amax(1).clamp(min=0)
    best = torch.full_like(low, torch.inf)
    scales, zeros = torch.ones_like(low), torch.full_like(low, grid.middle)
    for share in _SHARES if grid.searched else (1.0,):
        tried = _scales(low * share, high * share, grid)
        zero = (
            torch.full_like(low, grid.middle) if grid.symmetric else (-low * share / tried).round().clamp(0, grid.most)
        )
        change = (rounded(weight, tried, zero, grid) - zero[:, None]).mul_(tried[:, None]).sub_(weight)
        error = change.square_().sum(1) if metric is None else _judged(change, metric)
        better = error < best
        best = torch.where(better, error, best)
        scales, zeros = torch.where(better, tried, scales), torch.where(better, zero, zeros)
    return scales, zeros


def _judged(change: Tensor, metric: Tensor) -> Tensor:
    """δᵀMδ of each row."""
    apart = change.view(-1, *metric.shape[:2]).transpose(0, 1)
    return (torch.bmm(apart, metric) * apart).sum(2).T.flatten()


def _scales(low: Tensor, high: Tensor, grid: Grid) -> Tensor:
    # A symmetric grid has one step more below 0 than above it; half a step is what rounding gains at the upper end.
    steps = torch.maximum(-low, high) * 2 / grid.most if grid.symmetric else (high - low) / grid.most
    return steps.clamp(min=_LEAST_SCALE).half().float()


def rounded(weight: Tensor, scales: Tensor, zeros: Tensor, grid: Grid) -> Tensor:
    """The nearest integers, as floats, of weights [rows, members]."""
    return (weight / scales[:, None]).round_().add_(zeros[:, None]).clamp_(0, grid.most)


def quantize_rtn(weight: Tensor, grid: Grid, hessian: Tensor | None = None) -> Grouped:
    """`weight` [outputs, inputs] rounded to the nearest.

    With a `hessian` [inputs, inputs] the scales that are searched are those with which outputs change least, as far as
    each group tells. Raises ValueError where inputs are not in whole groups.
    """
    outputs, inputs = weight.shape
    groups = groups_of(inputs, grid)
    parts = weight.float().reshape(outputs * groups, inputs // groups)
    size = inputs // groups
    metric = None
    if hessian is not None:
        metric = hessian.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
    scales, zeros = fit(parts, grid, metric)
    integers = rounded(parts, scales, zeros, grid)
    shape = (outputs, groups)
    return as_grouped(integers.view(outputs, inputs), scales.view(shape), zeros.view(shape), grid)


def as_grouped(integers: Tensor, scales: Tensor, zeros: Tensor, grid: Grid) -> Grouped:
    """The same with the types that files have; zeros that are all in the middle are left out."""
    kept = None if bool((zeros == grid.middle).all()) else zeros.to(torch.int16)
    return Grouped(integers.to(torch.uint8), scales.half(), kept, bits=grid.bits)
