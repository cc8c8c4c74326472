"""When a rate is more than a server can do: its queue grows without end."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import msgspec
import numpy as np

# Nothing is said before these seconds and arrivals: every server has a queue that grows when load begins.
SECONDS = 4.0
ARRIVALS = 40
# Chance alone moves a queue by about the square root of the arrivals.
_DEVIATIONS = 3.0
# Share of the arrivals. A queue that grows more slowly would still be short at the end of a run.
_SHARE = 0.1


class Sample(msgspec.Struct, frozen=True):
    """At a time, in seconds: requests that were due so far, and those that wait for their first token."""

    time: float
    arrived: int
    waiting: int


def keeps_up(arrivals: Sequence[float], ends: Sequence[float]) -> bool | None:
    """Whether a server kept up with requests that came at these times and ended at those.

    It did not where clearly more of them were in flight in the last quarter of the time in which they came than in the
    second. None where that time was less than twice what the first of them took: until then more are in flight in any
    case.
    """
    if len(arrivals) < ARRIVALS:
        return None
    end = max(arrivals)
    begun, ended = np.asarray(arrivals), np.asarray(ends)
    early = begun <= end / 4
    if not early.any() or end < 2 * float(np.median((ended - begun)[early])):
        return None

    def mean(first: float, last: float) -> float:
        spent = np.minimum(ended, last * end) - np.maximum(begun, first * end)
        return float(spent.clip(min=0.0).sum() / ((last - first) * end))

    arrived = int((begun >= end / 2).sum())
    return mean(0.75, 1.0) - mean(0.25, 0.5) <= _clear_growth(arrived)


def is_oversaturated(samples: Sequence[Sample]) -> bool:
    """Whether the queue has grown from quarter to quarter, and in the last half by more than chance would make it.

    It is those who wait for a first token that count: how many are being answered says little, since that grows until
    the first of them end.
    """
    if not samples or samples[-1].time < SECONDS or samples[-1].arrived < ARRIVALS:
        return False
    end = samples[-1].time
    quarters: list[list[int]] = [[], [], [], []]
    for sample in samples:
        quarters[min(3, int(4 * sample.time / end))].append(sample.waiting)
    if not all(quarters):
        return False
    means = [sum(quarter) / len(quarter) for quarter in quarters]
    half = next(sample for sample in samples if sample.time >= end / 2)
    arrived = samples[-1].arrived - half.arrived
    # Between the means of the second and the last quarter half of the time goes by.
    grown = means[3] - means[1]
    steady = all(before < after for before, after in pairwise(means))
    return steady and grown > _clear_growth(arrived)


def _clear_growth(arrived: int) -> float:
    """More requests than a queue grows by chance while `arrived` come."""
    return max(_DEVIATIONS * sqrt(max(1, arrived)), _SHARE * arrived)
