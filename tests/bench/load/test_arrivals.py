"""Arrivals are the processes that they are named after."""

import itertools
import statistics

import pytest

from penstock.bench.load.arrivals import Closed, Open, Replay, arrival_times, check_arrivals
from penstock.core.errors import ConfigurationError

COUNT = 20_000


def gaps(rate: float, burstiness: float, seed: int = 0) -> list[float]:
    times = [0.0, *itertools.islice(arrival_times(Open(rate, burstiness), seed), COUNT)]
    return [after - before for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    found = gaps(8.0, burstiness)
    # A Gamma distribution of shape b: its deviation is its mean over the root of b. The bounds are 5 standard errors.
    deviation = (1 / 8.0) / burstiness**0.5
    assert statistics.fmean(found) == pytest.approx(1 / 8.0, abs=5 * deviation / COUNT**0.5)
    assert statistics.pstdev(found) == pytest.approx(deviation, rel=0.1)


def test_burstiness_1_is_a_poisson_process() -> None:
    found = sorted(gaps(3.0, 1.0))
    # Kolmogorov's distance from the exponential distribution; its 0.1% bound is 1.95 / sqrt(n).
    from math import exp

    distance = max(abs((rank + 0.5) / COUNT - (1 - exp(-3.0 * gap))) for rank, gap in enumerate(found))
    assert distance < 1.95 / COUNT**0.5


def test_how_many_come_in_a_second_varies_as_it_should() -> None:
    times = list(itertools.islice(arrival_times(Open(10.0), 1), COUNT))
    counts = [0] * int(times[-1])
    for time in times:
        if time < len(counts):
            counts[int(time)] += 1
    # Of a Poisson process, mean and variance are the same.
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(1.0, abs=0.2)


def test_a_seed_has_its_times() -> None:
    assert gaps(5.0, 0.5, seed=3) == gaps(5.0, 0.5, seed=3)
    assert gaps(5.0, 0.5, seed=3) != gaps(5.0, 0.5, seed=4)


@pytest.mark.parametrize(
    ("arrivals", "option"),
    [
        (Closed(0), "--concurrency 0"),
        (Open(0.0), "--rate 0"),
        (Open(float("nan")), "--rate nan"),
        (Open(1.0, 0.0), "--burstiness 0"),
        (Replay(-1.0), "--time-scale -1"),
    ],
)
def test_numbers_without_meaning_are_refused(arrivals: Closed | Open | Replay, option: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        check_arrivals(arrivals)
