"""Counts by bucket, as Prometheus has them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

# Bounds for times: from a millisecond to ten minutes.
SECONDS = tuple(
    round(step * scale, 6)
    for scale in (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
    for step in (1.0, 1.5, 2.5, 4.0, 6.0, 8.0)
    if step * scale <= 600.0
)


class Histogram:
    """How many values were in which bucket; the bounds are inclusive.

    Attributes:
        sum: of all values.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in its bucket, and add it to the sum."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def add(self, values: Sequence[float]) -> None:
        """Add several, which costs less."""
        for place, count in Counter(map(partial(bisect_left, self._bounds), values)).items():
            self._counts[place] += count
        self.sum += sum(values)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Each bound, as it is written, and how many values do not exceed it; the last is all."""
        total = 0
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total
