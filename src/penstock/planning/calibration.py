"""Coefficients from a few runs on the machine that is planned for, and how far off they leave one another."""

from collections.abc import Callable, Sequence
from math import exp, sqrt
from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.planning import priors
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Workload
from penstock.planning.latency import Deployment
from penstock.planning.memory import memory_of, places_of
from penstock.planning.processors import PROCESSOR

if TYPE_CHECKING:
    # It imports numpy, which takes longer than a plan, and which only a calibration needs.
    from penstock.planning.fitting import Point

# With fewer, what is left out says nothing of the rest.
LEAST_POINTS = 4
# How much it costs a coefficient to leave the priors: little, so that eight points decide.
STIFFNESS_ALONE = 0.05
# The middle 90% of a normal distribution, in its deviations; and the least interval that is told.
_DEVIATIONS = 1.645
_LEAST = 0.1


class MeasuredPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run that was measured; times are means in milliseconds, None where one was not."""

    input_len: int
    output_len: int
    concurrency: int = 1
    cached_len: int = 0
    tensor_parallel_size: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Basis(msgspec.Struct, frozen=True):
    """Coefficients, the ends of intervals as multiples of estimates, and what they stand on.

    Attributes:
        varied: single steps as multiples of their estimates; empty where that is not known.
        apart: seconds by which requests that are sent together come one behind the other; where that was not measured,
            about what a client and a server take for one.
    """

    efficiency: Efficiency
    tpot: tuple[float, float]
    ttft: tuple[float, float]
    said: str
    varied: tuple[float, ...] = ()
    apart: float = 1e-3


def prior_basis(deployment: Deployment) -> Basis:
    """What is known where nothing of the machine was measured."""
    device, kind = deployment.device.name, deployment.weights.kind
    if deployment.device.kind == "cpu":
        said = "a guess; nothing of this processor was measured, which `penstock calibrate` does"
        return Basis(PROCESSOR, priors.TPOT_INTERVAL, priors.TTFT_INTERVAL, said)
    said = "a guess from other formats; nothing like it is known here"
    if (device, kind) in priors.MEASURED:
        said = "coefficients of public measurements of this device and format"
    elif any(kind == other for _, other in priors.MEASURED):
        said = "coefficients of public measurements of other devices; nothing of this one in this format is known here"
    return Basis(priors.TYPICAL, priors.TPOT_INTERVAL, priors.TTFT_INTERVAL, said)


def calibrated(deployment: Deployment, measured: Sequence[MeasuredPoint]) -> Basis:
    """Coefficients of measured runs of a deployment. Raises ConfigurationError where they are too few or make no sense.

    Intervals are those of the errors that each point has where the others are fitted without it.
    """
    points = [_point(deployment, each, number) for number, each in enumerate(measured, 1)]
    if len(points) < LEAST_POINTS:
        raise ConfigurationError(f"A calibration takes {LEAST_POINTS} points or more, and {len(points)} are there.")
    alone = [(_fitted([*points[:place], *points[place + 1 :]]), point) for place, point in enumerate(points)]
    said = f"a calibration of {len(points)} points, each of them estimated from the others"
    return Basis(
        efficiency=_fitted(points),
        tpot=_interval(alone, lambda point: msgspec.structs.replace(point, ttft=None), priors.TPOT_INTERVAL),
        ttft=_interval(alone, lambda point: msgspec.structs.replace(point, tpot=None), priors.TTFT_INTERVAL),
        said=said,
    )


def _point(deployment: Deployment, each: MeasuredPoint, number: int) -> "Point":
    """Raises ConfigurationError for a point that is none, by its number."""
    from penstock.planning.fitting import Point

    times = [time for time in (each.ttft_ms, each.tpot_ms) if time is not None]
    lengths = each.input_len, each.output_len, each.concurrency, each.tensor_parallel_size or 1
    if not times or min(times) <= 0 or min(lengths) < 1 or not 0 <= each.cached_len < each.input_len:
        raise ConfigurationError(
            f"Point {number} of the calibration is none: it needs lengths and a concurrency of 1 or more, and ttft_ms "
            "or tpot_ms above zero."
        )
    sharing = each.tensor_parallel_size or deployment.sharing
    there = msgspec.structs.replace(deployment, split=deployment.groups * sharing)
    workload = Workload(float(each.input_len), float(each.output_len), float(each.concurrency), float(each.cached_len))
    places = places_of(there, memory_of(there, each.input_len + each.output_len), workload)
    return Point(
        there,
        workload,
        None if each.ttft_ms is None else each.ttft_ms / 1e3,
        None if each.tpot_ms is None else each.tpot_ms / 1e3,
        places=places,
    )


def _fitted(points: Sequence["Point"]) -> Efficiency:
    from penstock.planning.fitting import fit

    return fit(points, priors.TYPICAL, {}, STIFFNESS_ALONE)


def _interval(
    alone: Sequence[tuple[Efficiency, "Point"]], of: Callable[["Point"], "Point"], otherwise: tuple[float, float]
) -> tuple[float, float]:
    """The ends that hold nine tenths, from the errors of points that were left out; the priors' where there is none."""
    from penstock.planning.fitting import residuals

    wrong = [error for efficiency, point in alone for error in residuals(efficiency, [of(point)])]
    if len(wrong) < LEAST_POINTS:
        return otherwise
    return interval_of(wrong, _LEAST)


def interval_of(wrong: Sequence[float], least: float) -> tuple[float, float]:
    """The ends that hold nine tenths, as multiples of estimates, from logarithms of errors; at least `least` wide."""
    wide = max(least, _DEVIATIONS * sqrt(sum(error * error for error in wrong) / len(wrong)))
    return exp(-wide), exp(wide)
