"""Quantiles of many numbers in little memory, each within 1% of a number that occurred.

This is DDSketch (Masson, Rim and Lee, VLDB 2019): numbers are counted in buckets whose bounds grow by one factor,
so that whatever is in a bucket is within the accuracy of the bucket's middle. Sketches add up to that of all their
numbers. Here the range is fixed, which bounds the buckets; numbers outside of it count as its ends.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from operator import mul

ACCURACY = 0.01
# Seconds: a microsecond, and a month.
LEAST, MOST = 1e-6, 2592000.0

_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_index_of_log = partial(mul, 1 / math.log(_GROWTH))
# Times growth^i: the number that differs from none of the bucket (growth^(i-1), growth^i] by more than the accuracy.
_MIDDLE = 2 / (_GROWTH + 1)
MOST_BUCKETS = math.ceil(_index_of_log(math.log(MOST))) - math.ceil(_index_of_log(math.log(LEAST))) + 1


class Sketch:
    """Numbers that were counted.

    Attributes:
        count, sum: of all; `max` is the largest, None where there are none.
    """

    __slots__ = ("_buckets", "count", "max", "sum")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.sum = 0.0
        self.max: float | None = None

    @property
    def buckets(self) -> int:
        """How many are in use; at most MOST_BUCKETS."""
        return len(self._buckets)

    def add(self, values: Sequence[float]) -> None:
        """Count some numbers. All at a time, since each then costs a fraction of a microsecond."""
        if not values:
            return
        least, most = min(values), max(values)
        self.count += len(values)
        self.sum += math.fsum(values)
        self.max = most if self.max is None else max(self.max, most)
        if least < LEAST or most > MOST:
            values = [min(max(value, LEAST), MOST) for value in values]
        buckets = self._buckets
        for index, count in Counter(map(math.ceil, map(_index_of_log, map(math.log, values)))).items():
            buckets[index] = buckets.get(index, 0) + count

    def merge(self, other: "Sketch") -> None:
        """Count what another one has counted."""
        buckets = self._buckets
        for index, count in other._buckets.items():
            buckets[index] = buckets.get(index, 0) + count
        self.count += other.count
        self.sum += other.sum
        if other.max is not None:
            self.max = other.max if self.max is None else max(self.max, other.max)

    def quantiles(self, shares: Sequence[float]) -> list[float] | None:
        """For each of the rising `shares`, the least number that this share of all do not exceed; None without any."""
        if self.max is None:
            return None
        found: list[float] = []
        ordered = iter(sorted(self._buckets.items()))
        index, reached = next(ordered)
        for share in shares:
            # Rounded, since 0.99 * 100 is a little more than 99.
            rank = max(1, math.ceil(round(share * self.count, 9)))
            while reached < rank:
                index, count = next(ordered)
                reached += count
            found.append(min(_MIDDLE * _GROWTH**index, self.max))
        return found


class SlidingSketch:
    """The numbers of the last `length` parts, each counted by itself."""

    def __init__(self, length: int) -> None:
        self._parts = deque([Sketch()] * length)
        self._whole = Sketch()

    def push(self, part: Sketch) -> None:
        """A part is complete; the oldest one is forgotten."""
        oldest = self._parts.popleft()
        self._parts.append(part)
        self._whole.merge(part)
        if oldest.count:
            self._forget(oldest)

    def with_part(self, part: Sketch) -> Sketch:
        """The sum of all, and of one that is not complete."""
        whole = Sketch()
        whole.merge(self._whole)
        whole.merge(part)
        return whole

    def _forget(self, part: Sketch) -> None:
        whole = self._whole
        for index, count in part._buckets.items():
            left = whole._buckets[index] - count
            if left:
                whole._buckets[index] = left
            else:
                del whole._buckets[index]
        whole.count -= part.count
        whole.sum = math.fsum(each.sum for each in self._parts)
        whole.max = max((each.max for each in self._parts if each.max is not None), default=None)
