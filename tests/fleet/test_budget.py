"""What all replicas may cost together: on made-up decisions."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.fleet.budget import afford, check_affordable
from penstock.fleet.description import Between, FleetDescription, ModelDescription
from penstock.routing.autoscaling import Decision

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


def test_a_person_keeps_to_it_too() -> None:
    check_affordable(FLEET, {"small": 5, "large": 2, "free": 9})
    with pytest.raises(ConfigurationError, match=r"cost 11 dollars an hour, and budget_per_hour of the fleet is 10"):
        check_affordable(FLEET, {"small": 6, "large": 2, "free": 9})
