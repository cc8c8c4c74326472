"""GPTQ: rounds one input after another, and lets those to come make up for the error (Frantar et al., 2023).

The order of inputs is by how much they matter (their diagonal of the Hessian) where asked; groups and their scales are
fixed before, so that they stay runs of inputs that stand together whatever the order.
"""

import torch
from torch import Tensor

from penstock.quantization.grouped import Grouped
from penstock.quantization.rtn import Grid, as_grouped, fit, groups_of, rounded

# Inputs whose errors are passed on one by one before they are passed on to all others at once (section 3, step 2).
_BLOCK = 128
_TRIES = 4
# Rows of a Hessian that are added to in one product. What is left of its diagonal is the same as what is right of it,
# and is not computed.
_STRIP = 1024


class Hessian:
    """The mean of x · xᵀ over a layer's inputs x, twice: what the error of its outputs is by that of its weights.

    Attributes:
        rows: how many inputs were seen.
        largest: float32 [inputs], the largest magnitude of each.
    """

    def __init__(self, inputs: int) -> None:
        self._sum = torch.zeros(inputs, inputs)
        self.rows = 0
        self.largest = torch.zeros(inputs)

    def add(self, x: Tensor) -> None:
        """Add the products of inputs x [rows, inputs]."""
        wide = x.float()
        for first in range(0, wide.shape[1], _STRIP):
            self._sum[first : first + _STRIP, first:].addmm_(wide[:, first : first + _STRIP].T, wide[:, first:])
        self.rows += x.shape[0]
        self.largest = torch.maximum(self.largest, wide.abs().amax(0))

    def mean(self) -> Tensor:
        """[inputs, inputs]; raises ValueError where nothing was added, or something that is not finite."""
        if not self.rows:
            raise ValueError("No inputs were seen, so there is nothing to calibrate by.")
        found = self._sum.triu().add_(self._sum.triu(1).T).mul_(2 / self.rows)
        if not bool(found.isfinite().all()):
            raise ValueError("The inputs that were seen are not all finite.")
        return found


def quantize_gptq(
    weight: Tensor, hessian: Tensor, grid: Grid, *, damping: float = 0.01, act_order: bool = True
) -> Grouped:
    """`weight` [outputs, inputs] rounded so that its outputs change little.

    Args:
        weight: of any floating type.
        hessian: [inputs, inputs] as `Hessian.mean` gives it.
        grid: what it is rounded to.
        damping: share of the mean diagonal that is added to it, against inputs that hardly occur.
        act_order: begin with the inputs that matter most.

    Raises ValueError where inputs are not in whole groups, or the Hessian is not finite.
    """
    outputs, inputs = weight.shape
    size = inputs // groups_of(inputs, grid)
    left = weight.float().clone()
    matrix = hessian.float().clone()
    diagonal = matrix.diagonal()
    if not bool(matrix.isfinite().all()):
        raise ValueError("The inputs that were seen are not all finite.")
    never = diagonal == 0
    diagonal[never] = 1
    left[:, never] = 0
    parts = left.view(outputs, -1, size)
    scales, zeros = (each.view(outputs, -1) for each in fit(parts.reshape(-1, size), grid))
    order = diagonal.argsort(descending=True) if act_order else torch.arange(inputs)
    factor = _inverse_factor(matrix[order][:, order], damping)
    left = left[:, order]
    integers = torch.empty_like(left)
    group_of = order // size
    by_group = scales.T.contiguous(), zeros.T.contiguous()
    for first in range(0, inputs, _BLOCK):
        last = min(first + _BLOCK, inputs)
        # One input after another is read and written, so each lies in one piece here.
        columns = left[:, first:last].T.contiguous()
        found, errors = torch.empty_like(columns), torch.empty_like(columns)
        for own, place in enumerate(range(first, last)):
            scale, zero = (each[group_of[place]] for each in by_group)
            found[own] = rounded(columns[own, :, None], scale, zero, grid)[:, 0]
            torch.sub(columns[own], (found[own] - zero) * scale, out=errors[own])
            errors[own] /= factor[place, place]
            columns[own:].addr_(factor[place, place:last], errors[own], alpha=-1)
        integers[:, first:last] = found.T
        left[:, last:].addmm_(errors.T, factor[first:last, last:], alpha=-1)
    restored = torch.empty_like(integers)
    restored[:, order] = integers
    return as_grouped(restored, scales, zeros, grid)


def _inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """The upper Cholesky factor of the inverse (section 3, step 3), with the least damping that has one."""
    mean = float(hessian.diagonal().mean())
    for attempt in range(_TRIES):
        damped = hessian.clone()
        damped.diagonal().add_(damping * mean * 10**attempt)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed):
                found: Tensor = upper
                return found
    raise ValueError("The inputs that were seen do not tell the weights apart; calibrate with more text.")


def energy(matrix: Tensor, hessian: Tensor) -> float:
    """The mean square of a matrix's outputs, all together and twice: tr(MHMᵀ)."""
    return float(((matrix @ hessian) * matrix).sum())


def output_error(weight: Tensor, found: Tensor, hessian: Tensor) -> float:
    """How far outputs are from what they were, by their own mean square: tr(ΔHΔᵀ) / tr(WHWᵀ)."""
    wide = weight.float()
    return energy(found - wide, hessian) / energy(wide, hessian)
