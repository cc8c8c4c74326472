"""Counters of tenants, and shares of a step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.fairness import MAX_IDLE, Demand, FairCounters, share_out
from penstock.scheduler.pace import LEAST_PROMPT


def serve(counters: FairCounters, tenant: str, cost: float) -> None:
    """One request of a tenant, from its beginning to its end."""
    counters.enter(tenant)
    counters.admit(tenant)
    counters.leave(tenant)
    counters.charge(tenant, cost)
    counters.end(tenant)


def test_who_was_served_less_comes_first() -> None:
    counters = FairCounters()
    counters.enter("a")
    counters.enter("b")
    counters.charge("a", 10)
    assert counters.rank("b") < counters.rank("a")


def test_who_comes_back_is_lifted_to_the_least_of_those_who_wait() -> None:
    counters = FairCounters()
    counters.enter("a")
    counters.enter("b")
    counters.charge("a", 100)
    counters.charge("b", 70)
    counters.enter("c")
    assert counters.counter("c") == 70
    # Once it waits, what others are served does not lift it again.
    counters.charge("b", 50)
    counters.enter("c")
    assert counters.counter("c") == 70


def test_who_comes_back_is_not_forgiven_what_it_was_served_beyond_others() -> None:
    counters = FairCounters()
    counters.enter("a")
    serve(counters, "b", 1000)
    counters.enter("b")
    assert counters.counter("b") == 1000
    assert counters.rank("a") < counters.rank("b")


def test_who_comes_while_nobody_waits_is_lifted_to_who_waited_last() -> None:
    counters = FairCounters()
    counters.enter("a")
    counters.admit("a")
    counters.leave("a")
    counters.charge("a", 30)
    counters.enter("b")
    assert counters.counter("b") == 30


def test_of_equals_the_one_of_which_less_runs_comes_first() -> None:
    counters = FairCounters()
    counters.enter("a")
    counters.enter("a")
    counters.admit("a")
    counters.leave("a")
    counters.enter("b")
    assert counters.counter("a") == counters.counter("b")
    assert counters.rank("b") < counters.rank("a")


def test_idle_tenants_are_forgotten_the_least_first() -> None:
    counters = FairCounters()
    counters.enter("busy")
    for number in range(MAX_IDLE + 10):
        serve(counters, f"tenant {number}", 1 + number)
    assert len(counters) == MAX_IDLE + 1
    assert counters.counter("tenant 9") == 0
    assert counters.counter("tenant 10") == 11
    assert not counters.unused
    counters.leave("busy")
    assert counters.unused


def test_a_step_ends_with_those_who_want_least() -> None:
    much = Demand(2000, served=3000)
    assert share_out(8192, {"a": Demand(5000), "b": much}) == {"a": 2000, "b": 2000}
    assert share_out(8192, {"a": Demand(5000, weight=2), "b": much}) == {"a": 4000, "b": 2000}


def test_beside_little_a_step_is_still_worth_its_while() -> None:
    assert share_out(8192, {"a": Demand(5000), "b": Demand(20)}) == {"a": 1004, "b": 20}
    much = Demand(2000, served=3000)
    assert share_out(8192, {"a": Demand(5000), "b": much}, beside=True) == {"a": 512, "b": 512}
    assert share_out(8192, {"a": Demand(5000)}, beside=True) == {"a": 1024}
    assert share_out(8192, {"a": Demand(5000), "b": Demand(0)}) == {"a": 1024, "b": 0}
    assert share_out(512, {"a": Demand(5000), "b": Demand(0)}) == {"a": LEAST_PROMPT, "b": 0}
    assert share_out(128, {"a": Demand(5000), "b": Demand(0)}, least=32) == {"a": 32, "b": 0}


def test_a_short_prompt_is_not_cut() -> None:
    assert share_out(128, {"a": Demand(5000, first=60), "b": Demand(0)}, least=32) == {"a": 60, "b": 0}
    assert share_out(128, {"a": Demand(5000, first=LEAST_PROMPT + 1), "b": Demand(0)}, least=32) == {"a": 32, "b": 0}
    busy = Demand(5000, first=1500)
    assert share_out(128, {"a": busy, "b": Demand(128, first=60)}, beside=True, least=32) == {"a": 7, "b": 60}


def test_who_would_be_through_first_does_not_share_its_step() -> None:
    # Otherwise it would have 64 of 128 tokens, and wait for the rest of them too.
    assert share_out(640, {"busy": Demand(5000), "quiet": Demand(64)}) == {"busy": 16, "quiet": 64}
    assert share_out(80, {"busy": Demand(5000), "quiet": Demand(64)}) == {"busy": 8, "quiet": 64}
    assert share_out(640, {"busy": Demand(5000), "quiet": Demand(200)}) == {"busy": 25, "quiet": 200}
    # Nor is it made to wait for others who only decode, and whom a longer step would hold up.
    assert share_out(640, {"busy": Demand(5000), "other": Demand(0), "quiet": Demand(200)})["quiet"] == 80
    assert share_out(640, {"busy": Demand(5000), "quiet": Demand(200)}, beside=True) == {"busy": 10, "quiet": 80}
    # Weights that are no whole numbers take nothing off.
    assert share_out(640, {"busy": Demand(5000), "quiet": Demand(206, weight=0.7)})["quiet"] == 206
    # It may be a little ahead, by the other's first request, and no more: then it has its share.
    busy = Demand(5000, first=1500, charged=1500)
    assert share_out(640, {"busy": busy, "quiet": Demand(64, served=-70)}) == {"busy": 16, "quiet": 64}
    assert share_out(640, {"busy": busy, "quiet": Demand(64, served=-60)}) == {"busy": 64, "quiet": 64}
    # What others were charged and have not got is no reason to go before them.
    late = replace(busy, charged=4500)
    assert share_out(640, {"busy": late, "quiet": Demand(64)}) == {"busy": 64, "quiet": 64}


@pytest.mark.parametrize("budget", [0, 1, 2])
def test_the_first_has_something_of_the_smallest_budget(budget: int) -> None:
    shares = share_out(budget, {"a": Demand(50, weight=0.001), "b": Demand(50, weight=1000), "c": Demand(0)})
    assert shares["a"] == 1


@given(
    st.integers(0, 4096),
    st.dictionaries(
        st.text(max_size=2),
        st.builds(Demand, st.integers(1, 3000), st.floats(0.001, 1000), st.floats(0, 1e4), st.integers(0, 3000)),
        min_size=2,
    ),
    st.booleans(),
)
def test_shares_are_within_budget_and_demand(budget: int, demands: dict[str, Demand], beside: bool) -> None:
    shares = share_out(budget, demands, beside=beside)
    assert shares.keys() == demands.keys()
    assert sum(shares.values()) <= budget + 1
    assert all(0 <= shares[name] <= demand.tokens for name, demand in demands.items())
    # Nobody would be through before others.
    demands = {name: replace(demand, served=-demand.wanted, first=0) for name, demand in demands.items()}
    shares = share_out(budget, demands)
    # Whoever has less than it wants has no less by weight than anybody else, but for rounding: each leaves up to one
    # token to those behind it.
    for name, demand in demands.items():
        if shares[name] < demand.tokens:
            most = max((shares[other] - len(demands)) / demands[other].weight for other in list(demands)[1:])
            assert most <= (shares[name] + 2) / demand.weight
