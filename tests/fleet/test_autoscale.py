"""Numbers of replicas that others start: on made-up gateways, and commands that are run."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import cast

import pytest

from penstock.core.errors import ConfigurationError
from penstock.fleet.autoscale import Change, Outside, command_of, execute, together
from penstock.fleet.description import Between, FleetDescription, ModelDescription
from penstock.fleet.following import DECISION_SECONDS, Following
from penstock.fleet.gateway_view import GatewayView, View
from penstock.fleet.totals import Totals
from penstock.gateway.demand import Demand
from penstock.routing.autoscaling import Counted
from penstock.routing.speed import Speed

FLEET = FleetDescription(model=(ModelDescription(name="My.Model", replicas=Between(0, 3), down_seconds=60.0),))
SPEED = Speed(prefill=1000.0, decode=0.01)


class Told:
    """A gateway that tells what a test says, or does not answer."""

    def __init__(self) -> None:
        self.demand: Demand | None = None

    async def look(self) -> View | None:
        return None if self.demand is None else View({}, {self.demand.model: self.demand})


class Site:
    """A fleet that others start, on a made-up clock."""

    def __init__(self, gateways: int = 1) -> None:
        self.told = [Told() for _ in range(gateways)]
        self.changes: list[Change] = []
        self.works = True
        self.now = 0.0
        views = [cast(GatewayView, each) for each in self.told]
        self.outside = Outside(FLEET, views, self.carry_out, Following())

    async def carry_out(self, change: Change) -> bool:
        self.changes.append(change)
        return self.works

    def look(self, seconds: float = DECISION_SECONDS) -> list[tuple[int, int]]:
        """What is changed, from and to, that much later."""
        self.now += seconds
        before = len(self.changes)
        asyncio.run(self.outside.look(self.now, self.now))
        return [(each.before, each.replicas) for each in self.changes[before:]]


def demand(ready: int = 0, held: int = 0, *, waiting: float = 0.0, asked: int = 0) -> Demand:
    counted = Counted(asked, 1000.0 * asked, asked, 10.0 * asked, 1000.0 * asked)
    return Demand("My.Model", counted, ready, SPEED, waiting, held, 0, held_tokens=waiting if held else 0.0)


def test_the_first_request_has_a_replica_started_once() -> None:
    site = Site()
    assert site.look() == []
    site.told[0].demand = demand()
    assert site.look() == []
    site.told[0].demand = demand(held=1)
    assert site.look() == [(0, 1)]
    assert site.changes[0].model == "My.Model" and "1 requests wait" in site.changes[0].why
    # It starts, is there, and is not needed any more.
    assert site.look() == [] and site.look() == []
    site.told[0].demand = demand(ready=1)
    changes = [each for _ in range(40) for each in site.look()]
    assert changes == [(1, 0)]
    # It has not ended yet.
    assert [site.look() for _ in range(20)] == [[]] * 20


def test_what_did_not_work_is_tried_again() -> None:
    site = Site()
    site.told[0].demand = demand(held=1)
    site.works = False
    assert site.look() == [(0, 1)] and site.look() == [(0, 1)]
    site.works = True
    assert site.look() == [(0, 1)] and site.look() == []


def test_without_gateways_nothing_is_decided_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(2)
    with caplog.at_level(logging.WARNING):
        site.look()
        site.look()
        site.told[1].demand = demand(held=1)
        assert site.look() == [(0, 1)]
        site.told[1].demand = None
        site.look()
    assert [each[:10] for each in caplog.messages] == ["No gateway"] * 2


def test_what_several_gateways_tell_is_one_load() -> None:
    told = [demand(ready=2, held=1, waiting=50.0), demand(ready=1, waiting=30.0), demand(held=2, waiting=20.0)]
    whole = together(told, Counted(9))
    assert (whole.ready, whole.held, whole.waiting, whole.held_tokens) == (2, 3, 100.0, 70.0)
    assert whole.counted == Counted(9) and whole.speed == SPEED


def test_a_gateway_that_begins_anew_takes_nothing_away() -> None:
    totals = Totals()
    assert totals.add(0, "m", Counted(5, 50.0)) == Counted(5, 50.0)
    assert totals.add(1, "m", Counted(2, 20.0)) == Counted(7, 70.0)
    assert totals.add(0, "m", Counted(6, 60.0)) == Counted(8, 80.0)
    assert totals.add(0, "m", Counted(1, 10.0)) == Counted(9, 90.0)
    assert totals.add(0, "other", Counted(1, 1.0)) == Counted(1, 1.0)


def test_it_does_not_take_what_starts_for_what_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    """Where it begins beside replicas that are there already."""
    site = Site()
    for ready in (1, 3, 2):
        site.told[0].demand = demand(ready=ready)
        assert site.look(0.5) == []
    site.told[0].demand = demand(ready=3, held=1, waiting=1e6)
    assert [site.look() for _ in range(3)] == [[]] * 3


def test_a_command_gets_the_number(tmp_path: Path) -> None:
    made = command_of("kubectl scale 'deployment/demo-{name}' --replicas={replicas} --comment '{model} now'")
    assert made(Change("My.Model", 3, 1, "why")) == [
        *("kubectl", "scale", "deployment/demo-my-model", "--replicas=3", "--comment", "My.Model now")
    ]
    file = tmp_path / "file"
    assert asyncio.run(execute([sys.executable, "-c", f"open({str(file)!r}, 'w').write('3')"]))
    assert file.read_text() == "3"


def test_a_command_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not asyncio.run(execute([sys.executable, "-c", "import sys; print('a'); sys.exit('no quota')"]))
        assert not asyncio.run(execute(["/no/such/command"]))
    assert "ended with status 1: no quota. It is tried again." in caplog.messages[0]
    assert "/no/such/command cannot be run" in caplog.messages[1]


@pytest.mark.parametrize(
    ("text", "cause"),
    [("scale '{replicas}", "is no command line"), ("scale it", "does not say the number"), ("", "does not say the")],
)
def test_what_is_no_command(text: str, cause: str) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        command_of(text)
