"""One kind of latency: of all that was measured, and of the last minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observability.latency import WINDOW, Latency
from penstock.observability.stats import Quantiles

TIMES = st.lists(st.floats(1e-4, 100), max_size=5)


def check(found: Quantiles, values: list[float]) -> None:
    assert found.count == len(values)
    if not values:
        assert found == Quantiles()
        return
    ordered = sorted(values)
    assert found.max == ordered[-1]
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert found.p50 == pytest.approx(ordered[(len(values) + 1) // 2 - 1], rel=0.0101)


@given(st.lists(st.one_of(TIMES, st.integers(1, 70)), max_size=12), TIMES)
def test_the_last_minute_and_all_time(course: list[list[float] | int], newest: list[float]) -> None:
    latency, seconds = Latency(), list[list[float]]()
    for event in course:
        # So many seconds without anything, or one in which something was measured.
        if isinstance(event, int):
            seconds += [[]] * event
            for _ in range(event):
                assert latency.tick() is None
            continue
        for value in event:
            latency.observe(value)
        median = latency.tick()
        assert (median is None) == (not event)
        seconds.append(event)
    for value in newest:
        latency.observe(value)
    check(latency.life(), [value for second in [*seconds, newest] for value in second])
    check(latency.minute(), [value for second in [*seconds[-WINDOW:], newest] for value in second])


def test_values_are_counted_once_however_many_wait() -> None:
    latency = Latency()
    for number in range(2000):
        latency.observe(0.001 * (1 + number % 10))
        if number % 700 == 0:
            latency.tick()
    assert latency.life().count == latency.minute().count == 2000
    assert dict(latency.histogram().cumulative())["+Inf"] == 2000
    assert dict(latency.histogram().cumulative())["0.001"] == 200
