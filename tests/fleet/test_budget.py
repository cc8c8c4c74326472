"""What all replicas may cost together: on made-up decisions."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.fleet.books import Books
from penstock.fleet.budget import afford, check_affordable
from penstock.fleet.description import Between, FleetDescription, ModelDescription
from penstock.fleet.following import Following
from penstock.fleet.reconcile import Drain, Start, reconcile
from penstock.gateway.demand import Demand
from penstock.routing.autoscaling import Counted, Decision
from penstock.routing.speed import Speed

SMALL = ModelDescription(name="small", replicas=Between(0, 9), cost_per_hour=1.0)
LARGE = ModelDescription(name="large", replicas=Between(1, 9), cost_per_hour=2.5)
FREE = ModelDescription(name="free", replicas=Between(0, 9), cost_per_hour=0.0)
FLEET = FleetDescription(model=(SMALL, LARGE, FREE), budget_per_hour=10.0).check()


def wanted(**counts: int) -> dict[str, Decision]:
    return {name: Decision(count, "it is so") for name, count in counts.items()}


def test_without_a_budget_all_is_had() -> None:
    fleet = msgspec.structs.replace(FLEET, budget_per_hour=None)
    decisions = wanted(small=9, large=9)
    afforded = afford(fleet, {"small": 0, "large": 1, "free": 0}, decisions)
    assert afforded.decisions == decisions and not afforded.refused


def test_models_take_from_it_as_they_are_described() -> None:
    afforded = afford(FLEET, {"small": 1, "large": 1, "free": 0}, wanted(large=4, small=6, free=9))
    assert {name: each.replicas for name, each in afforded.decisions.items()} == {"small": 6, "large": 1, "free": 9}
    assert afforded.refused == {
        "large": "large has 1 replicas instead of 4: the budget of 10 dollars an hour has no room for more."
    }
    assert afforded.decisions["large"].why == "it is so, and the budget has no room for more"


def test_what_ends_makes_room() -> None:
    afforded = afford(FLEET, {"small": 5, "large": 2, "free": 0}, wanted(small=4, large=3))
    assert afforded.decisions["large"].replicas == 2
    afforded = afford(FLEET, {"small": 5, "large": 2, "free": 0}, wanted(small=2, large=3))
    assert afforded.decisions["large"].replicas == 3 and not afforded.refused


def test_what_there_is_stays_where_the_budget_has_become_smaller() -> None:
    afforded = afford(FLEET, {"small": 9, "large": 3, "free": 0}, wanted(small=9, large=4))
    assert {name: each.replicas for name, each in afforded.decisions.items()} == {"small": 9, "large": 3}


@given(
    have=st.fixed_dictionaries({"small": st.integers(0, 9), "large": st.integers(1, 9), "free": st.integers(0, 9)}),
    asked=st.dictionaries(st.sampled_from(["small", "large", "free"]), st.integers(0, 9)),
)
def test_it_is_never_more_than_before_or_than_the_budget(have: dict[str, int], asked: dict[str, int]) -> None:
    afforded = afford(FLEET, have, wanted(**asked))
    then = {**have, **{name: each.replicas for name, each in afforded.decisions.items()}}

    def cost(counts: dict[str, int]) -> float:
        return counts["small"] * 1.0 + counts["large"] * 2.5

    assert cost(then) <= max(10.0, cost(have)) and afforded.decisions.keys() == asked.keys()
    for name, count in asked.items():
        # None ends for another one, and none is refused without being told.
        assert min(have[name], count) <= then[name] <= count
        assert (then[name] < count) == (name in afforded.refused)


def test_the_fewest_have_to_be_affordable() -> None:
    with pytest.raises(ConfigurationError, match="may be cost 2.5 dollars an hour, and budget_per_hour is 2"):
        msgspec.structs.replace(FLEET, budget_per_hour=2.0).check()


def test_an_exact_budget_is_enough() -> None:
    model = ModelDescription(name="m", replicas=3, cost_per_hour=0.1)
    FleetDescription(model=(model,), budget_per_hour=0.3).check()


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_a_cost_is_a_number(cost: float) -> None:
    with pytest.raises(ConfigurationError, match="cost_per_hour of small"):
        msgspec.structs.replace(SMALL, cost_per_hour=cost).check()


def test_persons_and_updates_keep_to_it_too() -> None:
    before = {"small": 5, "large": 2, "free": 0}
    check_affordable(FLEET, before, {"small": 5, "large": 2, "free": 9})
    with pytest.raises(ConfigurationError, match=r"cost 11 dollars an hour, and budget_per_hour of the fleet is 10"):
        check_affordable(FLEET, before, {"small": 6, "large": 2, "free": 0})
    # What costs too much already may become less, or stay.
    over = {"small": 9, "large": 3, "free": 0}
    check_affordable(FLEET, over, {"small": 8, "large": 3, "free": 9})
    books = Books(FLEET)
    books.scale("small", 6)
    raised = msgspec.structs.replace(FLEET, model=(SMALL, msgspec.structs.replace(LARGE, replicas=Between(2, 9)), FREE))
    assert books.counts_by(raised) == {"small": 6, "large": 2, "free": 0}
    with pytest.raises(ConfigurationError, match="would cost 11 dollars"):
        check_affordable(raised, books.counts, books.counts_by(raised))


def test_what_is_refused_is_said_once_until_there_is_room() -> None:
    books = Books(FLEET)
    assert books.refuse("large", "no room for 4") and not books.refuse("large", "no room for 5")
    assert books.models["large"].refused == "no room for 5" and not books.told
    assert not books.refuse("large", "") and books.refuse("large", "no room for 4")
    books.scale("large", 2)
    assert not books.models["large"].refused


def test_an_update_of_a_model_that_follows_its_load_comes_to_its_end() -> None:
    """More replicas than are wanted, for a time, are no sign of a load."""
    old = ModelDescription(name="m", replicas=Between(1, 3), start_seconds=100.0)
    new = msgspec.structs.replace(old, cores=2)
    books, following, names = Books(FleetDescription(model=(old,))), Following(), itertools.count()
    born: dict[str, float] = {}
    for step in range(1500):
        now = 0.2 * step
        if step == 250:
            books.describe(FleetDescription(model=(new,)))
        for name, at in born.items():
            if name in books.replicas:
                books.seen(name, ready=now - at >= 15.0, why="it loads", requests=0, now=now)
        demands = {"m": Demand("m", Counted(), books.ready["m"], Speed(1000.0, 0.01), 0.0, 0, 0)}
        for name, decision in following.decide(books.fleet, books.counts, books.ready, demands, now, now).items():
            books.follow(name, decision.replicas, decision.why)
        for action in reconcile(books.wanted(), books.members(), now):
            if isinstance(action, Start):
                name = str(next(names))
                books.started(name, books.models["m"].wanted, 0, now)
                born[name] = now
            elif isinstance(action, Drain):
                books.draining(action.name, action.why, now)
                books.ended(action.name, "in order", now)
        assert books.models["m"].count == 1 and len(books.replicas) <= 2
    assert books.settled and len(born) == 2
