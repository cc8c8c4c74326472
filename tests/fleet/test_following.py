"""Numbers of replicas that follow the load: on made-up members and demands."""

from math import inf

import msgspec
import pytest

from penstock.fleet.description import Between, FleetDescription, ModelDescription
from penstock.fleet.following import DECISION_SECONDS, USUAL_TTFT, Following, rules_of
from penstock.gateway.demand import Demand
from penstock.routing.autoscaling import Counted
from penstock.routing.scaling import Targets
from penstock.routing.speed import Speed

MODEL = ModelDescription(name="m", replicas=Between(0, 4))
FLEET = FleetDescription(model=(MODEL, ModelDescription(name="fixed", replicas=2)))
SPEED = Speed(prefill=1000.0, decode=0.01)


def demand(held: int = 0, waiting: float = 0.0, model: str = "m", speed: Speed | None = SPEED) -> Demand:
    return Demand(model, Counted(), 0, speed, waiting, held, 0)


def decided(following: Following, now: float, count: int = 0, ready: int = 0, **asked: float) -> int | None:
    """Where a model is to have `count` replicas."""
    held, waiting = int(asked.get("held", 0)), asked.get("waiting", 0.0)
    demands = {"m": demand(held, waiting), "fixed": demand(held, waiting, "fixed")}
    found = following.decide(FLEET, {"m": count, "fixed": 2}, {"m": ready, "fixed": 2}, demands, now, 0)
    assert "fixed" not in found
    return None if "m" not in found else found["m"].replicas


def test_decisions_are_made_now_and_then_and_at_once_for_the_first_request() -> None:
    following = Following()
    assert decided(following, 0.0) == 0
    assert decided(following, 0.1) is None
    assert decided(following, 0.2, held=1) == 1
    assert decided(following, 0.4, 1, held=1) is None
    assert decided(following, 0.2 + DECISION_SECONDS, 1, held=1) == 1


def test_hours_have_their_numbers_in_time() -> None:
    """Those of the next hour start as long before it as a start takes."""
    model = msgspec.structs.replace(MODEL, replicas=Between(0, 4, {"8-18": 2, "17-9": 1}))
    fleet, following = FleetDescription(model=(model,)), Following()
    following.started("m", 60.0)
    found = [
        following.decide(fleet, {"m": 0}, {}, {"m": demand()}, 100.0 * number, today)["m"]
        for number, today in enumerate((7.9 * 3600, 8 * 3600 - 59.0, 17.9 * 3600, 18 * 3600 + 1.0, 86_399.0))
    ]
    assert [each.replicas for each in found] == [1, 2, 2, 1, 1]
    assert found[1].why == "2 are the fewest there may be now"


def test_more_than_are_wanted_do_not_count_nor_those_that_failed() -> None:
    """An update has more replicas for a time, and one that has ended is started again."""
    for count, ready in ((2, 3), (2, 1), (1, 0)):
        following = Following()
        assert [decided(following, DECISION_SECONDS * number, count, ready) for number in range(9)] == [count] * 9


def test_one_of_a_load_that_needs_none_ends() -> None:
    following = Following()
    assert [decided(following, 100.0 * number, 1, 1) for number in range(5)] == [1, 1, 1, 0, 0]


def test_a_person_may_say_the_number() -> None:
    following = Following()
    following.fix("m", fixed=True)
    assert decided(following, 0.0, held=1) is None and not following.follows(MODEL)
    following.fix("m", fixed=False)
    assert decided(following, 0.0, held=1) == 1


def test_starts_are_measured() -> None:
    """What waits is computed by the time that new replicas take."""
    counts = []
    for seconds in (10.0, 100.0):
        following = Following()
        for _ in range(10):
            following.started("m", seconds)
        counts.append(decided(following, 0.0, held=9, waiting=200_000.0))
    assert counts == [4, 2]


@pytest.mark.parametrize(
    ("slo", "targets"),
    [
        (None, Targets(USUAL_TTFT, inf)),
        ("ttft=500ms,tpot=40ms", Targets(0.5, 0.04)),
        ("itl=50ms", Targets(inf, 0.05)),
        ("e2e=9s", Targets(USUAL_TTFT, inf)),
    ],
)
def test_service_levels_are_targets(slo: str | None, targets: Targets) -> None:
    rules = rules_of(msgspec.structs.replace(MODEL, slo=slo, down_seconds=50.0))
    assert rules.targets == targets and (rules.least, rules.most) == (0, 4)
    assert (rules.down_seconds, rules.pause_seconds) == (50.0, 10.0)


def test_a_model_of_no_known_speed_gets_replicas_too() -> None:
    found = Following().decide(FLEET, {"m": 0, "fixed": 2}, {}, {"m": demand(held=1, speed=None)}, 0.0, 0)
    assert found["m"].replicas == 1
