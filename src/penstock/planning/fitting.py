"""Coefficients of the latency model from measured points: damped least squares on logarithms of ratios.

A ratio of 2 is as far off as one of 1/2, and a point that is far off pulls like one that is less so (soft L1). What the
points do not say stays near where it was.
"""

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Workload, estimate
from penstock.planning.latency import Deployment, MeasuredStep, step_time

Vector = NDArray[np.float64]

# A residual of this size counts about half as much as its square would.
_SOFT = 0.1
_ROUNDS = 12
_DAMPING = 1e-3
_DIFFERENCE = 1e-4
# Parts of a limit cannot be more than this, unless what is read stays in a processor's caches.
_MOST_PART = 1.2
_MOST_CACHED = 50.0


class Point(msgspec.Struct, frozen=True):
    """What was measured of a deployment under a workload, in seconds; None: that was not.

    `ttft_weight`: of that figure beside TPOT. `places`: requests that run at a time at most.
    """

    deployment: Deployment
    workload: Workload
    ttft: float | None = None
    tpot: float | None = None
    ttft_weight: float = 1.0
    places: float = inf


def coefficients(efficiency: Efficiency) -> dict[str, float]:
    """All of them by name, but for those that are zero; those of a kind of format as in "weights fp8"."""
    found: dict[str, float] = {}
    for name, value in msgspec.structs.asdict(efficiency).items():
        if isinstance(value, dict):
            found |= {f"{name} {kind}": part for kind, part in value.items()}
        elif value:
            found[name] = value
    return found


def efficiency_of(found: Mapping[str, float]) -> Efficiency:
    """What `coefficients` made into names and numbers, as coefficients of the model again."""
    fields: dict[str, object] = {}
    for name, value in found.items():
        field, _, kind = name.partition(" ")
        if kind:
            parts = fields.setdefault(field, {})
            assert isinstance(parts, dict)
            parts[kind] = value
        else:
            fields[name] = value
    return msgspec.convert(fields, Efficiency)


def residuals(efficiency: Efficiency, points: Sequence[Point]) -> list[float]:
    """Logarithms of estimates over measurements, those of TTFT behind those of TPOT for each point."""
    found = []
    for point in points:
        told = estimate(point.deployment, efficiency, point.workload, point.places)
        if point.tpot is not None:
            found.append(log(told.tpot / point.tpot))
        if point.ttft is not None:
            found.append(log(told.ttft / point.ttft) * point.ttft_weight)
    return found


def fit(points: Sequence[Point], start: Efficiency, stiffness: Mapping[str, float], usual: float = 1.0) -> Efficiency:
    """The coefficients under which estimates are nearest to what was measured.

    `stiffness` says by coefficient how much it costs to leave where it was; of others it is `usual`.
    """
    return _least_squares(lambda there: residuals(there, points), start, stiffness, usual, _MOST_PART)


def fit_steps(
    deployment: Deployment,
    steps: Sequence[MeasuredStep],
    start: Efficiency,
    stiffness: Mapping[str, float],
    usual: float = 1.0,
) -> Efficiency:
    """The coefficients under which steps of a processor's own engine take what they were measured to take.

    `stiffness` and `usual` are as in `fit`.
    """
    return _least_squares(lambda there: step_residuals(deployment, there, steps), start, stiffness, usual, _MOST_CACHED)


def fit_line(places: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The line of least squares: where it begins, and its slope, neither of them below zero."""
    across, up = np.array(places, float), np.array(values)
    slope, begin = (float(part) for part in np.polyfit(across, up, 1))
    if slope < 0:
        slope, begin = 0.0, float(up.mean())
    elif begin < 0:
        slope, begin = float(across @ up / (across @ across)), 0.0
    return max(0.0, begin), max(0.0, slope)


def step_residuals(deployment: Deployment, efficiency: Efficiency, steps: Sequence[MeasuredStep]) -> list[float]:
    """Logarithms of estimates of steps over measurements."""
    return [log(step_time(deployment, efficiency, step.rows).seconds / step.seconds) for step in steps]


def _least_squares(
    residuals_of: Callable[[Efficiency], list[float]],
    start: Efficiency,
    stiffness: Mapping[str, float],
    usual: float,
    most_part: float,
) -> Efficiency:
    origin = coefficients(start)
    names = list(origin)

    def wrong_at(place: Vector) -> Vector:
        return np.array(residuals_of(_at(place, names, most_part)))

    begun = np.array([log(origin[name]) for name in names])
    stiff = np.array([stiffness.get(name, usual) for name in names])
    place, damping = begun.copy(), _DAMPING
    wrong = wrong_at(place)
    cost = _cost(wrong, place - begun, stiff)
    for _ in range(_ROUNDS):
        slopes = _slopes(wrong_at, place, wrong)
        soft = 1.0 / np.sqrt(1.0 + (wrong / _SOFT) ** 2)
        normal = slopes.T @ (slopes * soft[:, None]) + np.diag(stiff**2)
        pull = slopes.T @ (soft * wrong) + stiff**2 * (place - begun)
        moved = False
        while damping < 1e6:
            there = place - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull)
            there_wrong = wrong_at(there)
            there_cost = _cost(there_wrong, there - begun, stiff)
            if there_cost < cost:
                moved = cost - there_cost > 1e-5 * cost
                place, wrong, cost, damping = there, there_wrong, there_cost, damping / 5
                break
            damping *= 5
        if not moved:
            break
    return _at(place, names, most_part)


def _at(place: Vector, names: Sequence[str], most_part: float) -> Efficiency:
    values = {name: exp(value) for name, value in zip(names, place, strict=True)}
    parts = ("weights", "products", "cache", "attention", "link")
    # Both together take no longer than one after the other.
    values["overlap"] = max(1.0, values["overlap"])
    return efficiency_of(
        {name: min(value, most_part) if name.startswith(parts) else value for name, value in values.items()}
    )


def _cost(wrong: Vector, moved: Vector, stiff: Vector) -> float:
    lost = 2 * _SOFT**2 * (np.sqrt(1 + (wrong / _SOFT) ** 2) - 1)
    return float(lost.sum() + ((stiff * moved) ** 2).sum())


def _slopes(wrong_at: Callable[[Vector], Vector], place: Vector, wrong: Vector) -> Vector:
    columns = []
    for index in range(len(place)):
        beside = place.copy()
        beside[index] += _DIFFERENCE
        columns.append((wrong_at(beside) - wrong) / _DIFFERENCE)
    return np.stack(columns, axis=1)
