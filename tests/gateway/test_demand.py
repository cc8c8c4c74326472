"""What comes for each model, and what waits."""

from gateway.conftest import Start
from penstock.core.usage import Used
from penstock.gateway.demand import Demands
from penstock.gateway.pool import Pool, address_of
from penstock.gateway.replicas import Replicas
from penstock.routing.autoscaling import Counted
from penstock.routing.line import Turn
from penstock.routing.loads import Loads
from penstock.routing.speed import GUESSED, Speed
from penstock.routing.told import ReplicaState
from support.scripted_http import whole_answer

SLOW, FAST = Speed(prefill=100.0, decode=0.02), Speed(prefill=300.0, decode=0.01)


class Fleet:
    """Replicas of `m` and of `n`, and one that has told no speed."""

    def __init__(self) -> None:
        self.replicas, self.loads, self.speeds = Replicas(("late",)), Loads(), list[Speed]()
        for port, model, speed in ((1, "m", SLOW), (2, "m", FAST), (3, "n", None)):
            replica = self.replicas.add(Pool(address_of(f"http://127.0.0.1:{port}")))
            replica.is_ready([model])
            replica.told = ReplicaState(at=0.0, instance="one", models=(model,), speed=speed)
            self.loads.add()
            self.speeds.append(speed or Speed(prefill=5000.0, decode=0.02))
        self.demands = Demands(self.replicas, self.loads, self.speeds)


def test_requests_are_counted_by_their_models() -> None:
    fleet = Fleet()
    for _ in range(2):
        fleet.demands.came("m", 1000)
    fleet.demands.sent("m", 1000, 600)
    fleet.demands.ended("m", None, 20)
    fleet.demands.ended("m", Used(1000, 600, 30), 9)
    fleet.demands.ended("m", None)
    fleet.demands.came(None, 7)
    late, m, n = fleet.demands.told([])
    assert (late.model, m.model, n.model) == ("late", "m", "n")
    assert m.counted == Counted(requests=2, prompt=1400.0, outputs=2, output=50.0, context=2000.0)
    assert late.counted == n.counted == Counted()


def test_models_that_no_replica_has_are_not_counted() -> None:
    fleet = Fleet()
    for each in range(2000):
        fleet.demands.came(f"made up {each}", 10)
        fleet.demands.sent(f"made up {each}", 10, 5)
        fleet.demands.ended(f"made up {each}", None, 20)
    fleet.replicas.expected = tuple(f"made up {each}" for each in range(2000))
    assert all(each.counted == Counted() for each in fleet.demands.told([]))
    fleet.demands.came("made up 1999", 10)
    assert fleet.demands.told([])[1999].counted.requests == 1


def test_what_waits_is_at_replicas_and_before_them() -> None:
    fleet = Fleet()
    fleet.loads.sent(0, 500, 100)
    fleet.loads.sent(2, 70)
    late, m, n = fleet.demands.told([Turn(1, 30, "m"), Turn(2, 9, "late"), Turn(3, 1, "late")])
    assert (m.ready, m.waiting, m.held, m.requests) == (2, 430.0, 1, 1)
    assert (n.ready, n.waiting, n.held, n.requests) == (1, 70.0, 0, 1)
    assert (late.ready, late.waiting, late.held, late.requests) == (0, 10.0, 2, 0)


def test_the_backlog_is_what_one_replica_would_need() -> None:
    fleet = Fleet()
    fleet.loads.sent(0, 300)
    late, m, _ = fleet.demands.told([Turn(1, 1000, "m"), Turn(2, 500, "late")])
    assert (m.held_tokens, m.waiting) == (1000, 1300.0) and m.backlog(m.held_tokens) == 1000 / 200
    assert (late.held_tokens, late.waiting) == (500, 500.0) and late.backlog(500) == 500 / GUESSED.prefill


def test_speeds_are_those_that_replicas_tell() -> None:
    fleet = Fleet()
    late, m, n = fleet.demands.told([])
    assert m.speed == Speed(prefill=200.0, decode=0.015) and n.speed is None and late.speed is None
    for replica in fleet.replicas.all:
        replica.models = ()
    # What was known stays known: the next replica will be like the last one.
    [late, *gone] = fleet.demands.told([])
    assert gone == [] and late.model == "late"
    fleet.replicas.expected = ("m",)
    [m] = fleet.demands.told([])
    assert m.ready == 0 and m.speed == Speed(prefill=200.0, decode=0.015)


def test_a_gateway_counts_what_it_passes_on(gateway: Start) -> None:
    """Of answers, those whose length something tells: comments of a stream, or usage that a limit is counted by."""
    started = gateway(whole_answer)
    assert started.complete(max_tokens=9, prompt="x" * 400).status_code == 200
    started.wait_until_empty()
    [told] = started.dispatch.demands.told(started.dispatch.hold.turns)
    # A quarter of the bytes, where no tokenizer is at hand.
    assert told.counted == Counted(requests=1, prompt=100.0, context=100.0)
    assert (told.model, told.ready, told.held) == ("scripted", 1, 0)
