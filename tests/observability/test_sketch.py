"""The sketch against exact quantiles."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observability.sketch import ACCURACY, LEAST, MOST, MOST_BUCKETS, Sketch, SlidingSketch

SHARES = (0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0)
# Beside what is exact, an ulp or two of the logarithm.
BOUND = ACCURACY * (1 + 1e-9)


def exact(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(round(share * len(values), 9)) - 1)]


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch()
    sketch.add(values)
    return sketch


@given(st.lists(st.floats(LEAST, MOST), min_size=1, max_size=200))
def test_quantiles_are_within_the_accuracy_of_numbers_that_occurred(values: list[float]) -> None:
    found = sketch_of(values).quantiles(SHARES)
    assert found is not None
    for share, value in zip(SHARES, found, strict=True):
        assert value == pytest.approx(exact(values, share), rel=BOUND)


@given(st.lists(st.lists(st.floats(0, 1000), max_size=50), max_size=6))
def test_sketches_add_up(parts: list[list[float]]) -> None:
    merged, whole = Sketch(), sketch_of([value for part in parts for value in part])
    for part in parts:
        merged.merge(sketch_of(part))
    assert (merged.count, merged.max) == (whole.count, whole.max)
    assert merged.sum == pytest.approx(whole.sum)
    assert merged.quantiles(SHARES) == whole.quantiles(SHARES)


@given(st.lists(st.lists(st.floats(0, 1000), max_size=20), max_size=12), st.lists(st.floats(0, 1000), max_size=20))
def test_a_sliding_sketch_has_the_last_parts(parts: list[list[float]], newest: list[float]) -> None:
    sliding = SlidingSketch(4)
    for part in parts:
        sliding.push(sketch_of(part))
    whole = sketch_of([value for part in [*parts[-4:], newest] for value in part])
    found = sliding.with_part(sketch_of(newest))
    assert (found.count, found.max, found.buckets) == (whole.count, whole.max, whole.buckets)
    assert found.sum == pytest.approx(whole.sum)
    assert found.quantiles(SHARES) == whole.quantiles(SHARES)
    # Reading it changes nothing.
    assert sliding.with_part(sketch_of(newest)).quantiles(SHARES) == whole.quantiles(SHARES)


@pytest.mark.parametrize("spread", [0.1, 1.0, 2.0])
def test_quantiles_of_many_numbers_of_every_spread(spread: float) -> None:
    chance = random.Random(7)
    values = [chance.lognormvariate(-4, spread) for _ in range(50_000)]
    found = sketch_of(values).quantiles(SHARES)
    assert found is not None
    for share, value in zip(SHARES, found, strict=True):
        assert value == pytest.approx(exact(values, share), rel=BOUND)


def test_numbers_outside_of_the_range_count_as_its_ends() -> None:
    sketch = sketch_of([0.0, -1.0, 1e-9, 1e12, math.inf])
    assert sketch.count == 5 and sketch.buckets == 2 and sketch.max == math.inf
    found = sketch.quantiles((0.5, 0.99))
    assert found == [pytest.approx(LEAST, rel=BOUND), pytest.approx(MOST, rel=BOUND)]


def test_the_buckets_are_bounded() -> None:
    chance = random.Random(7)
    sketch = sketch_of([math.exp(chance.uniform(-50, 50)) for _ in range(100_000)])
    assert 1000 < sketch.buckets <= MOST_BUCKETS < 1500


def test_of_nothing_there_is_no_quantile() -> None:
    assert sketch_of([]).quantiles(SHARES) is None


def test_a_quantile_is_none_of_the_largest_numbers_betters() -> None:
    assert sketch_of([1.0]).quantiles((0.5, 1.0)) == [pytest.approx(1.0, rel=BOUND)] * 2
    sketch = sketch_of([1.0, 2.0, 3.0])
    found = sketch.quantiles((1.0,))
    assert found is not None and found[0] <= 3.0
