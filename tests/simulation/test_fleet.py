"""Replicas in simulated time: steps that are played together, and which replica a request goes to."""

import gc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.config import CacheConfig
from penstock.core.request import BACKGROUND_PRIORITY, Standing
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.routing.policies import LeastLoaded, Policy, RoundRobin
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.pace import LEAST_ROWS
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.fleet import Played, play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Replica
from penstock.simulation.sources import ClosedLoop, Given
from penstock.simulation.times import StepTimes
from support.made_up_model import kv_spec, made_up_spec
from support.played import MODELS, TIMES, config, workload
from support.simulation import make_request


class OneByOne(Scheduler):
    """Plans each step by itself."""

    def most_steps(self) -> int:
        """No step stands for others."""
        return 1


def play(scheduler: Scheduler, arrivals: list[Arrival]) -> Played:
    played = play_fleet([Replica(scheduler, TIMES)], Given(arrivals))
    scheduler.check()
    return played


def alike(one: Played, other: Played) -> None:
    """The same for each request, and in all."""
    assert len(one.requests) == len(other.requests)
    for each, same in zip(one.requests, other.requests, strict=True):
        assert (each.first, each.last) == pytest.approx((same.first, same.last), rel=1e-9)
        assert (each.output_tokens, each.cached_tokens) == (same.output_tokens, same.cached_tokens)
        assert each.longest_gap == pytest.approx(same.longest_gap, abs=2e-6)
    a, b = one.figures, other.figures
    assert (a.steps, a.most_waiting, a.most_blocks, a.preemptions) == (
        b.steps,
        b.most_waiting,
        b.most_blocks,
        b.preemptions,
    )
    assert a.busy == pytest.approx(b.busy) and a.gaps.total() == b.gaps.total()
    assert sum(gap * count for gap, count in a.gaps.items()) == pytest.approx(
        sum(gap * count for gap, count in b.gaps.items()), abs=1e-6 * a.gaps.total() + 1e-9
    )


@settings(deadline=None)
@given(seed=st.integers(0, 2**31), blocks=st.sampled_from((40, 70, 400)), rows=st.sampled_from((2, 8, 40)))
def test_steps_that_are_played_together_are_those_that_are_played_one_by_one(seed: int, blocks: int, rows: int) -> None:
    arrivals, cache, limits = workload(seed), CacheConfig(kv_spec(16), blocks), config(max_num_seqs=rows)
    together, apart = build_scheduler(limits, cache), build_scheduler(limits, cache)
    apart.__class__ = OneByOne
    alike(play(together, arrivals), play(apart, arrivals))
    assert together.snapshot() == apart.snapshot()


def test_steps_are_played_together() -> None:
    """Else the test before compares nothing."""
    scheduler = build_scheduler(config(), CacheConfig(kv_spec(16), 400))
    replica = Replica(scheduler, TIMES)
    for number, tokens in ((0, 100), (1, 50)):
        replica.take(0.001 * number, make_request(number, [number] * 20, tokens))
        if number == 0:
            # It begins.
            replica.finish()
    replica.finish()
    assert scheduler.most_steps() == 1
    replica.finish()
    assert scheduler.most_steps() == 49
    replica.finish()
    assert scheduler.snapshot().running == 1 and scheduler.most_steps() == 100 - 2 - 49


@pytest.mark.parametrize(
    ("changes", "spec", "standing"),
    [
        ({"draft_depth": 3}, kv_spec(16), Standing()),
        ({}, kv_spec(16, (None, 64)), Standing()),
        ({}, made_up_spec(16, 32), Standing()),
        ({}, kv_spec(16), Standing(priority=BACKGROUND_PRIORITY)),
    ],
)
def test_where_each_step_decides_something_none_stands_for_others(
    changes: dict[str, object], spec: object, standing: Standing
) -> None:
    scheduler = build_scheduler(config(**changes), CacheConfig(spec, 400))  # type: ignore[arg-type]
    replica = Replica(scheduler, TIMES)
    request = msgspec.structs.replace(make_request(0, [1] * 20, 50), standing=standing)
    replica.take(0.0, request)
    for _ in range(10):
        replica.finish()
        assert scheduler.most_steps() == 1


def test_a_bound_on_the_batch_decides_something_while_a_request_waits() -> None:
    scheduler = build_scheduler(config(target_itl=1.0, bound_batch=True), CacheConfig(kv_spec(16), 400))
    replica = Replica(scheduler, TIMES)
    for number in range(LEAST_ROWS + 1):
        replica.take(0.0, make_request(number, [number] * 20, 50 if number else 60))
    waited = together = 0
    while replica.load:
        replica.finish()
        if scheduler.facts.held == "pace":
            waited += 1
            assert scheduler.most_steps() == 1
        elif scheduler.has_work:
            together = max(together, scheduler.most_steps())
    assert waited and together > 5


def test_a_request_that_comes_is_part_of_what_follows_the_step_that_is_computed() -> None:
    alone = play(build_scheduler(config(), CacheConfig(kv_spec(16), 400)), [Arrival(0.0, make_request(0, [1], 200))])
    gap = (alone.requests[0].last - alone.requests[0].first) / 199
    arrivals = [Arrival(0.0, make_request(0, [1], 200)), Arrival(gap * 100.5, make_request(1, [2], 2))]
    first, second = play(build_scheduler(config(), CacheConfig(kv_spec(16), 400)), arrivals).requests
    # It waits for the end of a step, and gets its token with the next one.
    assert gap < second.first - TIMES.after - second.arrived < 3 * gap
    assert first.output_tokens == 200


def test_a_fleet_is_its_replicas() -> None:
    arrivals, cache = workload(5, 60), CacheConfig(kv_spec(16), 400)
    replicas = [Replica(build_scheduler(config(), cache), TIMES, number) for number in range(3)]
    fleet = play_fleet(replicas, Given(arrivals), RoundRobin())
    alone = [play(build_scheduler(config(), cache), arrivals[number::3]) for number in range(3)]
    for number, request in enumerate(fleet.requests):
        single = alone[number % 3].requests[number // 3]
        assert (request.replica, request.first, request.last) == (number % 3, single.first, single.last)
    assert fleet.figures.steps == sum(each.figures.steps for each in alone)
    assert fleet.figures.gaps.total() == sum(each.figures.gaps.total() for each in alone)


@pytest.mark.usefixtures("looked_through")
@pytest.mark.parametrize("spec", [kv_spec(16), kv_spec(16, (None, 64)), made_up_spec(16, 32)])
def test_what_is_played_leaves_no_cycles(spec: object) -> None:
    """No collector looks for them meanwhile. Prefixes are hit and evicted, and sequences preempted."""
    arrivals = workload(6, 200)
    replica = Replica(build_scheduler(config(max_num_seqs=40), CacheConfig(spec, 70)), TIMES)  # type: ignore[arg-type]
    gc.collect()
    enabled = gc.isenabled()
    played = play_fleet([replica], Given(arrivals))
    assert gc.collect() < len(arrivals) / 10 and gc.isenabled() == enabled
    assert played.figures.preemptions > 0 and any(request.cached_tokens for request in played.requests)


def test_a_long_request_is_passed_by() -> None:
    """A replica that is busy with one gets no other while the rest is idle."""
    cache = CacheConfig(kv_spec(16), 400)
    arrivals = [Arrival(0.0, make_request(0, [1], 250))]
    arrivals += [Arrival(0.01 + 0.2 * number, make_request(number, [2], 2)) for number in range(1, 9)]

    def replicas(policy: Policy) -> list[int]:
        fleet = [Replica(build_scheduler(config(), cache), TIMES, number) for number in range(2)]
        return [request.replica for request in play_fleet(fleet, Given(arrivals), policy).requests]

    assert replicas(RoundRobin()) == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    last = TIMES.after + 250 * 0.004
    assert last > arrivals[4].at and replicas(LeastLoaded())[:5] == [0, 1, 1, 1, 1]


def test_windows_and_records_are_timed_step_by_step() -> None:
    gemma = Deployment(shape_of(MODELS["gpt-oss-20b"]), device_of("h100"), weights=FORMATS["mxfp4"])
    scheduler = build_scheduler(config(), CacheConfig(kv_spec(16), 400))
    scheduler.add(make_request(0, [1], 200))
    plan = scheduler.plan(0.0)
    assert plan is not None
    assert StepTimes(gemma, TYPICAL).of(plan)[1] == 0.0 and TIMES.of(plan)[1] > 0.0


@given(
    seed=st.integers(0, 10_000), concurrency=st.integers(1, 9), way=st.sampled_from((0.0, 1e-4, 0.3)), two=st.booleans()
)
@settings(max_examples=30)
def test_a_closed_loop_has_as_many_requests_at_a_time(seed: int, concurrency: int, way: float, two: bool) -> None:
    schedulers = [build_scheduler(config(), CacheConfig(kv_spec(16), 200)) for _ in range(1 + two)]
    requests = [arrival.request for arrival in workload(seed)]
    loop = ClosedLoop(requests, concurrency, way, way)
    played = play_fleet([Replica(scheduler, TIMES) for scheduler in schedulers], loop)
    for scheduler in schedulers:
        scheduler.check()
    served = played.requests
    assert [each.output_tokens for each in served] == [request.sampling.max_tokens for request in requests]
    assert all(each.arrived < each.first <= each.last for each in served)
    # Each comes when another has ended, and they are never more.
    ends = sorted(each.last - TIMES.after for each in served)
    for number, each in enumerate(served):
        begun = [other for other in served[:number] if other.last - TIMES.after > each.arrived + 1e-9]
        assert len(begun) < concurrency
        if number >= concurrency:
            last = max(end for end in ends if end <= each.arrived + 1e-9)
            assert each.arrived <= last + way * (concurrency + 1) + 1e-9


def test_a_closed_loop_of_one_serves_one_after_the_other() -> None:
    requests = [make_request(number, list(range(1000 * number, 1000 * number + 50)), 5) for number in range(4)]
    schedulers = [build_scheduler(config(), CacheConfig(kv_spec(16), 200)) for _ in range(2)]
    alone = play(schedulers[0], [Arrival(0.0, requests[0])])
    played = play_fleet([Replica(schedulers[1], TIMES)], ClosedLoop(requests, 1, 0.25))
    took = alone.requests[0].last - TIMES.after
    for number, each in enumerate(played.requests):
        assert each.arrived == pytest.approx(number * (took + 0.25))
