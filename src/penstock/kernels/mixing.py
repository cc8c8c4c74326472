"""Mixtures of experts in torch: what a router chooses, and what experts make of the rows that they get."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from penstock.core.shares import Placement
from penstock.kernels.dispatch import Binding
from penstock.kernels.signature import Experts, Routing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WORD = 0xFFFFFFFF
_TURN_VALUES = 8
Mlp = Callable[[Tensor, int], Tensor]
"""(rows [rows, width], index of an expert) → what it makes of them, [rows, width]."""


def route(logits: Tensor, correction: Tensor | None, routing: Routing, scales: Tensor | None = None) -> Tensor:
    """float32 logits [rows, experts] → [rows, 2 · chosen], as `signature.Route` says."""
    scores = torch.softmax(logits, dim=1) if routing.score == "softmax" else torch.sigmoid(logits)
    ranked = scores if correction is None else scores + correction
    if routing.groups > 1:
        ranked = _of_best_groups(ranked, routing)
    chosen = _largest(ranked, routing.chosen)
    weights = scores.gather(1, chosen)
    if routing.renormalise:
        weights = weights / (weights.sum(1, keepdim=True) + routing.epsilon)
    weights = weights * routing.scale
    return torch.cat((chosen.float(), weights if scales is None else weights * scales[chosen]), dim=1)


def mix(
    x: Tensor,
    routed: Tensor,
    mlp: Mlp,
    placement: Placement | None = None,
    choices: "NDArray[np.int64] | None" = None,
) -> Tensor:
    """x [rows, width] and what its rows were routed to → [rows, width], as `signature.Experts` says.

    Choices are counted as `kernels.ranks.Ranks.choices` says.
    """
    chosen = routed.shape[1] // 2
    ids, weights = routed[:, :chosen].long(), routed[:, chosen:].float()
    if placement is not None:
        ids = _held(x, ids, placement, choices)
    total = torch.zeros(x.shape, dtype=torch.float32)
    for expert in ids[ids >= 0].unique().tolist():
        rows, places = (ids == expert).nonzero(as_tuple=True)
        total[rows] += weights[rows, places, None] * mlp(x[rows], expert).float()
    return total.to(x.dtype)


def turns(x: Tensor) -> Tensor:
    """A number for each row that follows from its first values alone, [rows]."""
    bits = x[:, :_TURN_VALUES].float().contiguous().view(torch.int32).long() & _WORD
    found = torch.zeros(len(x), dtype=torch.int64)
    for column in bits.unbind(1):
        found = ((found ^ column) * 0x9E3779B1) & _WORD
        found ^= found >> 15
    return found


def _held(x: Tensor, ids: Tensor, placement: Placement, choices: "NDArray[np.int64] | None") -> Tensor:
    """Which of this rank's experts the chosen ones are, in their order; -1 where another group computes the row."""
    copies = torch.tensor([len(each) for each in placement.holders])
    holders = pad_sequence([torch.tensor(each) for each in placement.holders], batch_first=True)
    groups = holders[ids, turns(x)[:, None] % copies[ids]]
    if choices is not None:
        choices[:-2] += ids.flatten().bincount(minlength=len(copies)).numpy()
        choices[-2] += ids.numel()
        choices[-1] += int(groups.flatten().bincount().max()) if ids.numel() else 0
    place = torch.full((len(copies),), -1)
    place[list(placement.held)] = torch.arange(len(placement.held))
    return torch.where(groups == placement.group, place[ids], -1)


def _largest(values: Tensor, count: int) -> Tensor:
    """Indices of each row's largest values, ascending; of equal values the first are taken."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values


def _of_best_groups(values: Tensor, routing: Routing) -> Tensor:
    """The values of the groups that may be chosen from; all others are below any."""
    grouped = values.unflatten(1, (routing.groups, -1))
    best = grouped.sort(dim=2, descending=True).values[:, :, : routing.best_of_group].sum(2)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, _largest(best, routing.kept_groups), True)
    masked: Tensor = grouped.masked_fill(~kept[:, :, None], -torch.inf)
    return masked.flatten(1)


def choices_of(op: Experts, binding: Binding) -> "NDArray[np.int64] | None":
    """Where the choices of an operation's experts are counted, if they are."""
    if binding.ranks is None or op.placement is None:
        return None
    return binding.ranks.choices(op.gate_up.name, len(op.placement.holders))
