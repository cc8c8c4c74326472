"""What is done next: on made-up fleets, whose replicas start, become ready, fail and end in any order."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.fleet.reconcile import (
    MOST_FAILED_STARTS,
    Drain,
    Member,
    Phase,
    Start,
    Wanted,
    pause_after,
    reconcile,
)


def member(name: str, phase: Phase = Phase.READY, version: str = "1", model: str = "m", **others: int) -> Member:
    return Member(name, model, version, phase, since=0.0, **others)


def test_missing_ones_are_started() -> None:
    assert reconcile([Wanted("m", "1", 2)], [], 0.0) == [Start("m", "1")] * 2
    assert reconcile([Wanted("m", "1", 2)], [member("a", Phase.STARTING)], 0.0) == [Start("m", "1")]
    # One that ends is there no longer.
    assert reconcile([Wanted("m", "1", 1)], [member("a", Phase.DRAINING)], 0.0) == [Start("m", "1")]
    assert reconcile([Wanted("m", "1", 1)], [member("a", Phase.UNREADY)], 0.0) == []


def test_too_many_end_those_first_that_are_missed_least() -> None:
    there = [member("a", requests=2), member("b", requests=1), member("c", Phase.STARTING), member("d", requests=3)]
    assert [each.name for each in reconcile([Wanted("m", "1", 2)], there, 0.0) if isinstance(each, Drain)] == ["c", "b"]
    assert [each.name for each in reconcile([], [member("a")], 0.0) if isinstance(each, Drain)] == ["a"]


def test_an_update_ends_an_old_one_only_once_a_new_one_can_be_asked() -> None:
    old = [member("a"), member("b")]
    wanted = [Wanted("m", "2", 2)]
    assert reconcile(wanted, old, 0.0) == [Start("m", "2")]
    assert reconcile(wanted, [*old, member("c", Phase.STARTING, "2")], 0.0) == []
    ended = reconcile(wanted, [*old, member("c", version="2")], 0.0)
    assert ended == [Drain("a", "an update replaces it")]


def test_without_a_surge_one_ends_first() -> None:
    wanted = [Wanted("m", "2", 2, surge=0)]
    assert reconcile(wanted, [member("a"), member("b")], 0.0) == [Drain("a", "an update replaces it")]
    assert reconcile(wanted, [member("b")], 0.0) == [Start("m", "2")]
    assert reconcile(wanted, [member("b"), member("c", Phase.STARTING, "2")], 0.0) == []
    assert [type(each) for each in reconcile(wanted, [member("b"), member("c", version="2")], 0.0)] == [Drain]


def test_after_failures_a_start_waits() -> None:
    assert reconcile([Wanted("m", "1", 1, failures=1, failed=10.0)], [], 10.0) == [Start("m", "1")]
    late = Wanted("m", "1", 1, failures=4, failed=10.0)
    assert reconcile([late], [], 11.9) == [] and reconcile([late], [], 12.0) == [Start("m", "1")]
    assert [pause_after(each) for each in (0, 1, 2, 3, 4, 100)] == [0.0, 0.0, 0.5, 1.0, 2.0, 30.0]
    assert MOST_FAILED_STARTS > 1


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Wanted], list[Member]]:
    wanted = [
        Wanted(model, "2", draw(st.integers(0, 4)), draw(st.integers(0, 2)))
        for model in draw(st.lists(st.sampled_from("ab"), unique=True))
    ]
    members = [
        member(str(number), draw(st.sampled_from(Phase)), draw(st.sampled_from("12")), draw(st.sampled_from("ab")))
        for number in range(draw(st.integers(0, 8)))
    ]
    return wanted, members


@settings(max_examples=300, deadline=None)
@given(fleets(), st.randoms(use_true_random=False))
def test_it_always_becomes_as_it_is_wanted(fleet: tuple[list[Wanted], list[Member]], luck: Random) -> None:
    """And meanwhile as many can be asked as before, up to those that are wanted, and never too many are there."""
    wanted, members = fleet
    started = 0
    for _ in range(200):
        before = list(members)
        actions = reconcile(wanted, members, 0.0)
        for action in actions:
            if isinstance(action, Start):
                started += 1
                members.append(member(f"new-{started}", Phase.STARTING, action.version, action.model))
            else:
                at = next(place for place, each in enumerate(members) if each.name == action.name)
                assert members[at].phase != Phase.DRAINING
                members[at] = msgspec.structs.replace(members[at], phase=Phase.DRAINING)
        for each in wanted:
            _check_model(each, before, members)
        waiting = [place for place, each in enumerate(members) if each.phase != Phase.READY]
        if not actions and not waiting:
            break
        if waiting:
            place = luck.choice(waiting)
            if members[place].phase == Phase.DRAINING:
                del members[place]
            else:
                members[place] = msgspec.structs.replace(members[place], phase=Phase.READY)
    counts = {each.model: each.count for each in wanted}
    assert all(each.version == "2" for each in members)
    assert all(sum(each.model == model for each in members) == counts.get(model, 0) for model in "ab")


def _check_model(wanted: Wanted, before: list[Member], after: list[Member]) -> None:
    def ready(members: list[Member]) -> int:
        return sum(each.model == wanted.model and each.phase == Phase.READY for each in members)

    def staying(members: list[Member]) -> int:
        return sum(each.model == wanted.model and each.phase != Phase.DRAINING for each in members)

    least = wanted.count if wanted.surge else wanted.count - 1
    assert ready(after) >= min(ready(before), least)
    assert staying(after) <= max(staying(before), wanted.count + wanted.surge)


@pytest.mark.parametrize("count", [0, 3])
def test_what_is_as_it_should_be_is_left_alone(count: int) -> None:
    there = [member(str(number)) for number in range(count)]
    assert reconcile([Wanted("m", "1", count)], there, 0.0) == []
