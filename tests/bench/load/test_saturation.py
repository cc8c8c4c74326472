"""A queue that grows without end is told from one that only moves, on simulated servers."""

import heapq
import itertools
import random

import pytest

from penstock.bench.load.arrivals import Open, arrival_times
from penstock.bench.load.saturation import Sample, is_oversaturated, keeps_up

SECONDS = 60.0


def simulate(rate: float, slots: int, service: float, seed: int) -> tuple[list[float], list[float], list[float]]:
    """When requests come, start and end at a server that has so many at a time, for exponential times."""
    source, free = random.Random(seed), [0.0] * slots
    arrivals = list(itertools.takewhile(lambda t: t < SECONDS, arrival_times(Open(rate), seed)))
    starts, ends = [], []
    for arrival in arrivals:
        start = max(arrival, heapq.heappop(free))
        end = start + source.expovariate(1 / service)
        heapq.heappush(free, end)
        starts.append(start)
        ends.append(end)
    return arrivals, starts, ends


def first_alarm(rate: float, slots: int, service: float, seed: int) -> float | None:
    """When the growth is noticed; None where it never is."""
    arrivals, starts, _ = simulate(rate, slots, service, seed)
    samples: list[Sample] = []
    for step in range(1, int(SECONDS * 10)):
        now = step / 10
        arrived = sum(arrival <= now for arrival in arrivals)
        begun = sum(start <= now for start in starts)
        samples.append(Sample(now, arrived, arrived - begun))
        if step % 10 == 0 and is_oversaturated(samples):
            return now
    return None


@pytest.mark.parametrize("seed", range(8))
def test_a_rate_that_is_served_raises_no_alarm(seed: int) -> None:
    assert first_alarm(8.0, slots=10, service=1.0, seed=seed) is None


@pytest.mark.parametrize("seed", range(8))
def test_twice_the_rate_is_noticed_early(seed: int) -> None:
    noticed = first_alarm(20.0, slots=10, service=1.0, seed=seed)
    assert noticed is not None
    assert noticed < 30.0


def test_long_answers_are_no_queue() -> None:
    # Nothing ends for a long time, and everybody has a slot.
    assert first_alarm(8.0, slots=10_000, service=40.0, seed=0) is None


@pytest.mark.parametrize("seed", range(8))
def test_whether_a_server_kept_up(seed: int) -> None:
    arrivals, _, ends = simulate(8.0, 10, 1.0, seed)
    assert keeps_up(arrivals, ends) is True
    arrivals, _, ends = simulate(20.0, 10, 1.0, seed)
    assert keeps_up(arrivals, ends) is False


def test_a_short_run_says_nothing() -> None:
    arrivals, _, ends = simulate(8.0, 10_000, 40.0, 0)
    assert keeps_up(arrivals, ends) is None
    assert keeps_up([1.0, 2.0], [2.0, 3.0]) is None
    assert not is_oversaturated([])
