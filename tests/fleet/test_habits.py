"""What hours of the last days needed: on made-up days."""

import logging
from pathlib import Path

import pytest

from penstock.fleet.description import Between, FleetDescription, ModelDescription, read_description
from penstock.fleet.following import DECISION_SECONDS, Following
from penstock.fleet.habits import Habits, read_habits
from penstock.gateway.demand import Demand
from penstock.routing.autoscaling import Counted
from penstock.routing.speed import Speed

HOUR, DAY = 3600.0, 86400.0
# A Monday, at nine o'clock.
MONDAY = 4 * DAY + 9 * HOUR


def of(*days: tuple[int, dict[int, float]]) -> Habits:
    """On each of some days after that Monday, how long how many were needed from nine o'clock on."""
    habits = Habits()
    for day, needed in days:
        for count, seconds in needed.items():
            habits.note("m", MONDAY + day * DAY + 10.0, count, seconds)
    return habits


def test_an_hour_needs_what_it_needed_in_the_median_of_days() -> None:
    habits = of((0, {1: 3600.0}), (1, {4: 3600.0}), (2, {3: 3600.0}))
    assert habits.expected("m", MONDAY + 3 * DAY) == 3 == habits.expected("m", MONDAY + 3 * DAY + 3599.0)
    assert habits.expected("m", MONDAY + 3 * DAY + HOUR) == 0 == habits.expected("m", MONDAY + 3 * DAY - HOUR)
    assert habits.expected("other", MONDAY + 3 * DAY) == 0
    # The days before the third are two, the lower of them counts; one day is too few.
    assert habits.expected("m", MONDAY + 2 * DAY) == 1 and habits.expected("m", MONDAY + DAY) == 0


def test_a_need_has_to_last_and_an_hour_to_be_seen() -> None:
    short, long = {1: 3300.0, 5: 300.0}, {0: 3240.0, 2: 260.0, 5: 100.0}
    assert of((0, short), (1, short)).expected("m", MONDAY + 2 * DAY) == 1
    # Two were needed for as long as two or more.
    assert of((0, long), (1, long)).expected("m", MONDAY + 2 * DAY) == 2
    seldom = {5: 1000.0}
    assert of((0, seldom), (1, seldom)).expected("m", MONDAY + 2 * DAY) == 0


def test_weekends_are_like_weekends() -> None:
    habits = of((3, {3: 3600.0}), (4, {3: 3600.0}), (5, {1: 3600.0}), (6, {1: 3600.0}))
    assert habits.expected("m", MONDAY + 7 * DAY) == 3
    assert habits.expected("m", MONDAY + 12 * DAY) == 1


def test_the_last_five_days_count_and_old_ones_are_forgotten() -> None:
    habits = of(*((day, {9 if day < 3 else 2: 3600.0}) for day in (0, 1, 2, 3, 4, 7, 8, 9)))
    assert habits.expected("m", MONDAY + 10 * DAY) == 2
    habits.note("m", MONDAY + 30 * DAY, 1, 1.0)
    assert set(habits.models["m"]) == {int(MONDAY / HOUR) + 24 * day for day in (9, 30)}


def test_they_are_kept_and_what_cannot_be_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    habits, path = of((0, {1: 3600.0}), (1, {4: 3600.0})), tmp_path / "habits.json"
    assert read_habits(path) == Habits() and not caplog.records
    habits.keep(path)
    assert read_habits(path) == habits and [each.name for each in tmp_path.iterdir()] == ["habits.json"]
    with caplog.at_level(logging.WARNING):
        for broken in (b"{", b'{"models": {"\xff": {}}}', b""):
            path.write_bytes(broken)
            assert read_habits(path) == Habits()
        assert len(caplog.messages) == 3
        habits.keep(tmp_path / "none" / "habits.json")
    assert "learnt anew" in caplog.messages[0] and "is not kept" in caplog.messages[3]


@pytest.mark.parametrize("forecast", [False, True])
def test_replicas_are_there_before_an_hour_that_needs_them(forecast: bool) -> None:
    """From nine to ten on two days requests came; on the third none has come yet."""
    model = ModelDescription(name="m", replicas=Between(0, 4, forecast=forecast))
    fleet, following = FleetDescription(model=(model,)), Following()
    following.started("m", 60.0)
    asked, clock = 0, 0.0

    def numbers(day: int, *, busy: bool) -> list[int]:
        """Those in the last minutes before nine, and in the hour."""
        nonlocal asked, clock
        found = list[int]()
        for number in range(-36, 720):
            clock += DECISION_SECONDS
            asked += 10 if busy and number >= 0 else 0
            counted = Counted(asked, 1000.0 * asked, asked, 100.0 * asked, 1000.0 * asked)
            demand = Demand("m", counted, 0, Speed(prefill=5000.0, decode=0.02), 0.0, 0, 0)
            at = MONDAY + day * DAY + number * DECISION_SECONDS
            found.append(following.decide(fleet, {"m": 0}, {}, {"m": demand}, clock, at)["m"].replicas)
        return found

    for day in range(2):
        assert max(numbers(day, busy=True)) >= 1
        clock += DAY
    found = numbers(2, busy=False)
    # A start takes a minute, which is twelve decisions.
    assert not any(found[:24]) and [bool(each) for each in found[24:]] == [forecast] * 732


def test_it_is_part_of_bounds_and_never_more_than_they_are(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[model]]\nname = "m"\nreplicas = { least = 0, most = 2, forecast = true }\n')
    fleet, following = read_description(path), Following(of((0, {9: 3600.0}), (1, {9: 3600.0})))
    demand = Demand("m", Counted(), 0, None, 0.0, 0, 0)
    [decision] = following.decide(fleet, {"m": 0}, {}, {"m": demand}, 0.0, MONDAY + 2 * DAY).values()
    assert (decision.replicas, decision.why) == (2, "2 are the fewest there may be now")
