"""The simulation is worth what it finds: each bug that is planted here is found within so many seeds."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.core.resumption import Begun
from penstock.gateway.connection import Connection
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.exchange import Exchange
from penstock.gateway.hold import Hold
from penstock.gateway.passing import Passed
from penstock.gateway.replicas import Replica
from penstock.gateway.track import Track
from penstock.routing.loads import Loads, Sent
from penstock.routing.outliers import Outliers
from support.fleet_world import run_fleet

MOST_SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def load_never_released(patch: pytest.MonkeyPatch) -> None:
    """That of a request that ends before its answer begins."""
    over = Loads.over
    patch.setattr(Loads, "over", lambda self, sent: over(self, sent) if sent.stage != "reading" else None)


def load_released_twice(patch: pytest.MonkeyPatch) -> None:
    """Where a request is over before it is answered."""

    def over(self: Loads, sent: Sent) -> None:
        self.requests[sent.replica] -= 1

    patch.setattr(Loads, "over", over)


def event_lost(patch: pytest.MonkeyPatch) -> None:
    """One of nine pieces of a stream is not passed on."""
    take = Track.take

    def lost(self: Track, piece: bytes) -> bytes:
        passed = take(self, piece)
        return b"" if self.count % 9 == 8 else passed

    patch.setattr(Track, "take", lost)


def token_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Another replica is asked to go on one token earlier."""
    begun = Track.begun

    def earlier(self: Track) -> Begun | None:
        found = begun(self)
        return found and Begun(found.id, found.created, found.seed, found.tokens[:-1])

    patch.setattr(Track, "begun", earlier)


def events_without_tokens_passed_on(patch: pytest.MonkeyPatch) -> None:
    """Before it is known which tokens they hold."""
    take, rest = Track.take, Track.rest
    patch.setattr(Track, "take", lambda self, piece: take(self, piece) + rest(self))


def double_send(patch: pytest.MonkeyPatch) -> None:
    """A replica that is too slow to answer goes on, and another one is asked."""
    patch.setattr(Connection, "close", lambda self: None)


def begun_again(patch: pytest.MonkeyPatch) -> None:
    """A stream that the client has the beginning of is begun again."""
    patch.setattr(Track, "has_more", property(lambda self: False))


def never_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """A stream that breaks has broken."""

    async def nowhere(*unused: Any) -> None:
        """There is none."""

    patch.setattr(Dispatch, "go_on", nowhere)


def asked_again_of_the_same(patch: pytest.MonkeyPatch) -> None:
    """A refused request goes to the replica that refused it."""

    def same(self: Dispatch, wanted: Any, without: Sequence[int]) -> list[int]:
        return list(without[-1:])

    patch.setattr(Dispatch, "ready", same)


def nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    """Requests wait on, although a replica has become ready, or has room."""
    patch.setattr(Hold, "look", lambda self: None)


def turn_never_ends(patch: pytest.MonkeyPatch) -> None:
    """A tenant's requests count as such that have their turn, although they are over."""
    patch.setattr(Hold, "end", lambda *unused: None)


def waiting_is_counted_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A request that has waited counts as one that waits."""
    until = Hold.until

    async def counted(self: Hold, found: Callable[[], list[int]]) -> list[int]:
        self._others += not found()
        return await until(self, found)

    patch.setattr(Hold, "until", counted)


def failure_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """What waits for a piece of an answer is not told that its connection broke."""

    def fail(self: Exchange, why: str, *, lost: bool = False) -> None:
        if not self.ended:
            self._is_lost, self._broken = lost and not self.begun, ReplicaBroken(why)

    patch.setattr(Exchange, "fail", fail)


def silence_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A replica that hangs holds up its streams."""
    patch.setattr("penstock.gateway.silence._look", lambda *unused: None)


def trial_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A replica that was left out, and whose trial's client has gone, is left out for good."""
    patch.setattr(Outliers, "undecided", lambda self, place: None)
    patch.setattr(Outliers, "succeeded", lambda self, place: None)


def exchange_is_kept(patch: pytest.MonkeyPatch) -> None:
    """What a replica was asked is kept when it is over."""
    init = Replica.__init__

    def kept(self: Replica, *given: Any) -> None:
        init(self, *given)
        self.under_way = _Kept()

    patch.setattr(Replica, "__init__", kept)


class _Kept(dict[Any, None]):
    def pop(self, *unused: Any) -> None:  # type: ignore[override]
        """Keep it."""


def client_that_left_is_served(patch: pytest.MonkeyPatch) -> None:
    """The replica computes on for a client that has gone."""
    run = Passed.run

    async def on(self: Passed, body: bytes, asked: Any, receive: Any, send: Any) -> None:
        async def never() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        await run(self, body, asked, never, send)

    patch.setattr(Passed, "run", on)


PLANTED: list[Plant] = [
    load_never_released,
    load_released_twice,
    event_lost,
    token_forgotten,
    events_without_tokens_passed_on,
    double_send,
    begun_again,
    never_elsewhere,
    asked_again_of_the_same,
    nobody_is_woken,
    turn_never_ends,
    waiting_is_counted_for_ever,
    failure_wakes_nobody,
    silence_is_not_noticed,
    trial_for_ever,
    exchange_is_kept,
    client_that_left_is_served,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_fleet(seed)
        except (TypeError, NameError):
            # The plant itself does not fit what it is planted in.
            raise
        except Exception:
            return
    pytest.fail(f"{plant.__doc__} It is not found within {MOST_SEEDS} seeds.")
