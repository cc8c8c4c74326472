"""How many replicas a model is to have: on a made-up clock, from made-up counts."""

from collections.abc import Callable

import msgspec
import pytest

from penstock.routing.autoscaling import (
    IDLE,
    MARGIN,
    REMEMBERED,
    STEP_PAUSE,
    Autoscaler,
    Counted,
    Decision,
    Moment,
    Rules,
)
from penstock.routing.scaling import Targets
from penstock.routing.speed import Speed

SPEED = Speed(prefill=10_000.0, decode=0.01, row=0.0001)
EVERY = 5.0
# A request takes 0.11 s of a replica.
PROMPT, OUTPUT = 1000, 100


class World:
    """Replicas that are there as soon as they are asked for, or later, and requests at a rate."""

    def __init__(self, rules: Rules, delay: float = 0.0) -> None:
        self.scaler, self.at, self.ready, self.requests = Autoscaler(rules), 0.0, rules.least, 0.0
        self._delay, self._coming = delay, list[float]()
        self.decisions: list[Decision] = []

    def run(self, seconds: float, rate: Callable[[float], float], waiting: float = 0.0, held: int = 0) -> list[int]:
        """What was decided, each time."""
        first = len(self.decisions)
        for _ in range(round(seconds / EVERY)):
            self.at += EVERY
            self.requests += rate(self.at) * EVERY
            self.ready += sum(at <= self.at for at in self._coming)
            self._coming = [at for at in self._coming if at > self.at]
            have = self.ready + len(self._coming)
            self.decisions.append(decision := self.scaler.decide(self._moment(waiting, held)))
            self._coming += [self.at + self._delay] * max(0, decision.replicas - have)
            self.ready -= max(0, have - decision.replicas)
            if not self._delay:
                self.ready, self._coming = self.ready + len(self._coming), []
        return [each.replicas for each in self.decisions[first:]]

    def _moment(self, waiting: float, held: int) -> Moment:
        count, hour = int(self.requests), int(self.at // 3600) % 24
        counted = Counted(count, count * PROMPT, count, count * OUTPUT, count * PROMPT)
        return Moment(self.at, hour, self.ready, len(self._coming), SPEED, counted, waiting, held)


def steady(rate: float) -> Callable[[float], float]:
    return lambda _at: rate


RULES = Rules(targets=Targets(ttft=2.0, tpot=0.05))


def test_more_come_at_once() -> None:
    world = World(RULES)
    assert world.run(600, steady(1.0))[-1] == 1
    # 2.2 replicas are used altogether.
    assert max(world.run(20, steady(20.0))) >= 3
    assert "more comes than before, by" in next(each.why for each in world.decisions[::-1] if each.replicas > 1)
    # Three are enough for what comes, and what comes is never the same.
    world.run(600, steady(20.0))
    assert world.decisions[-1].needed == round(3 * MARGIN) == 4


def test_those_that_start_are_not_asked_for_again() -> None:
    """However long they take."""
    counts = []
    for delay in (0.0, 60.0):
        world = World(RULES, delay)
        world.run(300, steady(1.0))
        counts.append(world.run(60, steady(20.0)))
    assert counts[0] == counts[1] and counts[0][-1] > 1


def test_fewer_come_one_after_the_other_and_only_after_a_while() -> None:
    world = World(RULES)
    world.run(600, steady(20.0))
    full = world.ready
    counts = world.run(1800, steady(1.0))
    assert full >= 3 and counts[-1] == 1
    assert all(before - after in (0, 1) for before, after in zip(counts, counts[1:], strict=False))
    steps = [number for number, (a, b) in enumerate(zip(counts, counts[1:], strict=False)) if a != b]
    assert steps[0] * EVERY >= RULES.down_seconds * 0.9 - EVERY
    pause = RULES.pause_seconds * STEP_PAUSE
    assert all((b - a) * EVERY >= pause for a, b in zip(steps, steps[1:], strict=False))


def test_a_load_that_swings_makes_no_number_swing() -> None:
    """Faster than `down_seconds`: the number stays at what the busiest time needs."""
    world = World(RULES)
    world.run(1200, lambda at: 20.0 if at % 240 < 120 else 2.0)
    counts = world.run(3600, lambda at: 20.0 if at % 240 < 120 else 2.0)
    assert max(counts) - min(counts) <= 1


def test_what_waits_asks_for_more_than_what_comes() -> None:
    world = World(Rules(targets=Targets(ttft=2.0), start_seconds=10.0))
    world.run(300, steady(1.0))
    # 60 s of one replica's work wait.
    counts = world.run(EVERY, steady(1.0), waiting=600_000.0)
    assert counts == [7] and "tokens of prompts wait" in world.decisions[-1].why


def test_none_without_requests_and_one_for_the_first() -> None:
    rules = Rules(targets=Targets(ttft=2.0), least=0)
    world = World(rules)
    assert set(world.run(600, steady(0.0))) == {0}
    assert world.run(EVERY, steady(0.0), held=1) == [1] and "wait for the first replica" in world.decisions[-1].why
    assert world.run(900, steady(0.0))[-1] == 0


def test_what_runs_is_not_cut_off() -> None:
    scaler = Autoscaler(Rules(targets=Targets(ttft=2.0), least=0, down_seconds=10.0))
    for running, expected in ((1, 1), (0, 0)):
        moments = (Moment(EVERY * at - 200.0 * running, 0, 1, 0, SPEED, Counted(), running=running) for at in range(20))
        assert min(scaler.decide(moment).replicas for moment in moments) == expected


@pytest.mark.parametrize(("least", "most", "expected"), [(2, 9, 2), (1, 2, 2), (1, 1, 1)])
def test_bounds_hold(least: int, most: int, expected: int) -> None:
    world = World(Rules(targets=Targets(ttft=2.0), least=least, most=most))
    counts = world.run(300, steady(0.5 if least > 1 else 50.0))
    assert counts[-1] == expected and all(least <= each <= most for each in counts)


def test_hours_have_floors() -> None:
    world = World(Rules(targets=Targets(ttft=2.0), floors={1: 3}))
    assert set(world.run(3590, steady(1.0))) == {1}
    assert world.run(60, steady(1.0))[-1] == 3
    world.run(3600, steady(1.0))
    assert world.run(900, steady(1.0))[-1] == 1


def test_the_smaller_a_surplus_is_the_longer_it_stays() -> None:
    """What a peak needed is forgotten; what the last hour needed is not, if nearly as much is still needed."""
    waited = {}
    for rate in (120.0, 20.0):
        world = World(RULES)
        world.run(900, steady(200.0))
        full = world.ready
        counts = world.run(2 * REMEMBERED * RULES.down_seconds, steady(rate))
        waited[rate] = next(at for at, count in enumerate(counts) if count < full) * EVERY
    # At least three quarters of the replicas stand idle.
    most = RULES.down_seconds * (1 + IDLE / 0.75)
    assert 0.9 * RULES.down_seconds <= waited[20.0] <= most
    assert waited[120.0] > 0.9 * REMEMBERED * RULES.down_seconds


def test_bursts_come_again_within_an_hour() -> None:
    """Every twenty minutes twice as many requests come for a minute: replicas for these stay."""
    world = World(RULES)

    def bursts(at: float) -> float:
        return 60.0 if at % 1200 < 60 else 30.0

    world.run(REMEMBERED * RULES.down_seconds, bursts)
    counts = world.run(3 * 3600, bursts)
    assert len(set(counts)) == 1 and counts[0] >= 60.0 * 0.11
    # What is told of an hour's need is no longer than what it needed.
    needed = [each.needed for each in world.decisions[-240:]]
    assert max(needed) > 1.5 * min(needed) and needed.count(max(needed)) <= (RULES.down_seconds + 60) / EVERY + 2


def test_bursts_are_remembered() -> None:
    """The same number of requests on average, but for ten seconds of each minute."""
    calm, bursty = World(RULES), World(RULES)
    calm.run(3600, steady(5.0))
    bursty.run(3600, lambda at: 30.0 if at % 60 < 10 else 0.0)
    assert bursty.ready > calm.ready
    assert "needed" in next(each.why for each in bursty.decisions[::-1] if each.replicas > calm.ready)


def test_a_peak_that_is_over_is_forgotten() -> None:
    """Nothing but what came lately asks for replicas, however much more came an hour ago."""
    usual, peak = World(RULES), World(RULES)
    usual.run(7200, steady(20.0))
    peak.run(3600, steady(20.0))
    most = max(peak.run(900, steady(200.0)))
    counts = peak.run(2700, steady(20.0))
    assert most > 5 * usual.ready and counts[-1] == usual.ready
    # A tenth of them ends at a time.
    assert all(before - after <= max(1, 0.1 * before) for before, after in zip(counts, counts[1:], strict=False))


def test_a_rise_is_taken_to_go_on_until_replicas_are_there() -> None:
    counts = {}
    for start in (10.0, 60.0):
        world = World(msgspec.structs.replace(RULES, start_seconds=start), start)
        world.run(900, steady(20.0))
        counts[start] = max(world.run(40, lambda at: 20.0 + (at - 900.0) * 2.0))
    assert counts[60.0] > counts[10.0] > 20.0 * 0.11
    assert "more comes than before" in world.decisions[-1].why or "tokens" in world.decisions[-1].why


def test_a_few_requests_are_no_rise() -> None:
    world = World(msgspec.structs.replace(RULES, start_seconds=60.0))
    world.run(900, steady(0.05))
    assert set(world.run(60, steady(0.2))) == {1}
