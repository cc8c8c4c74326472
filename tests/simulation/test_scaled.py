"""A fleet in simulated time whose number of replicas changes."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.config import CacheConfig
from penstock.routing.policies import LeastLoaded
from penstock.scheduler.build import build_scheduler
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.scaled import Decide, Fate, Ground, PlayedScaled, Watched, play_scaled
from penstock.simulation.sources import Given
from support.made_up_model import kv_spec
from support.played import TIMES, config, workload
from support.simulation import make_request


def make(number: int) -> Replica:
    return Replica(build_scheduler(config(), CacheConfig(kv_spec(16), 400)), TIMES, number)


def play(arrivals: Sequence[Arrival], decide: Decide, ground: Ground) -> PlayedScaled:
    return play_scaled(make, Given(arrivals), decide, LeastLoaded(), ground)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    starts=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=3),
    deaths=st.lists(st.floats(0.0, 20.0), max_size=4),
)
def test_every_request_is_answered_whatever_becomes_of_replicas(
    seed: int, counts: list[int], starts: list[float], deaths: list[float]
) -> None:
    arrivals = workload(seed)

    def decide(moment: Watched) -> int:
        assert moment.counted.requests == sum(each.at < moment.at for each in arrivals) or moment.at in (
            each.at for each in arrivals
        )
        return max(counts[int(moment.at) % len(counts)], int(moment.at > 60))

    ground = Ground(first=1, start_seconds=tuple(starts), every=1.0, deaths=tuple(deaths))
    played = play(arrivals, decide, ground)
    assert [each.arrived for each in played.fates] == [each.at for each in arrivals]
    assert all(each.arrived < each.first <= each.last < inf for each in played.fates)
    assert 0 < played.replica_seconds <= 5 * (played.seconds + max(starts)) + 1


def test_a_fixed_number_costs_its_time() -> None:
    played = play(workload(1), lambda _moment: 2, Ground(first=2))
    assert played.replica_seconds == pytest.approx(2 * played.seconds)
    assert played.reversals == [] and [count for _, count in played.changes] == [2]


def test_requests_wait_for_the_first_replica() -> None:
    arrivals = [Arrival(0.1 * number, make_request(number, [1] * 20, 5)) for number in range(3)]
    played = play(arrivals, lambda moment: int(moment.held > 0 or moment.ready > 0), Ground(first=0, every=1.0))
    # Decided at the first second; ten seconds later it is there.
    assert all(11.0 < each.first < 11.5 for each in played.fates)


def test_a_replica_that_dies_costs_its_requests_time_but_no_token_twice() -> None:
    arrivals = [Arrival(0.0, make_request(0, [1] * 20, 200))]
    calm = play(arrivals, lambda _moment: 2, Ground(first=2)).fates[0]
    middle = (calm.first + calm.last) / 2
    hurt = play(arrivals, lambda _moment: 2, Ground(first=2, deaths=(middle,))).fates[0]
    assert hurt.first == calm.first and hurt.last > calm.last and hurt.output == 200


def test_one_that_ends_finishes_what_it_has() -> None:
    arrivals = [Arrival(0.0, make_request(0, [1] * 20, 250)), Arrival(0.0, make_request(1, [1] * 20, 250))]
    played = play(arrivals, lambda moment: 2 if moment.at == 0 else 1, Ground(first=2, every=0.01))
    alone = play(arrivals, lambda _moment: 2, Ground(first=2))
    assert [each.last for each in played.fates] == pytest.approx([each.last for each in alone.fates])


def test_what_counts_as_within_targets() -> None:
    assert Fate(arrived=1.0, output=11, first=2.0, last=3.0).within(1.0, 0.1)
    assert not Fate(arrived=1.0, output=11, first=2.1, last=3.0).within(1.0, 0.1)
    assert not Fate(arrived=1.0, output=11, first=2.0, last=3.1).within(1.0, 0.1)
    assert Fate(arrived=1.0, output=1, first=2.0, last=2.0).within(1.0, 0.0)
    assert not Fate(arrived=1.0, output=1).within(1.0, 1.0)


def test_reversals_are_counted_within_an_hour() -> None:
    changes = [(0.0, 1), (100.0, 2), (200.0, 1), (300.0, 2), (5000.0, 1)]
    played = PlayedScaled([], 0.0, changes, 6000.0)
    assert played.reversals == [200.0, 300.0, 5000.0] and played.most_reversals == 2
