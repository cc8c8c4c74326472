"""Mixtures of experts in torch: what a router chooses, and what experts make of the rows that they get."""

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.kernels.signature import Routing

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


def mix(x: Tensor, routed: Tensor, mlp: Mlp) -> Tensor:
    """x [rows, width] and what its rows were routed to → [rows, width], as `signature.Experts` says."""
    chosen = routed.shape[1] // 2
    ids, weights = routed[:, :chosen].long(), routed[:, chosen:].float()
    total = torch.zeros(x.shape, dtype=torch.float32)
    for expert in ids.unique().tolist():
        rows, places = (ids == expert).nonzero(as_tuple=True)
        total[rows] += weights[rows, places, None] * mlp(x[rows], expert).float()
    return total.to(x.dtype)


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
