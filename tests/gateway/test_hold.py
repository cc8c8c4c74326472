"""Who waits at the gateway, for how long, and who is refused."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from penstock.core.errors import ModelNotFound, Overloaded, QueueFull, SloUnreachable
from penstock.gateway.errors import NoReplica
from penstock.gateway.hold import Hold
from penstock.gateway.options import HoldOptions
from penstock.gateway.pool import Pool, address_of
from penstock.gateway.replicas import Replicas, State
from penstock.routing.line import Turn
from penstock.routing.loads import Loads, Sent
from support.simulated_loop import simulate


class Attempt:
    """What was sent, and is counted until it is over."""

    def __init__(self, turn: Turn, loads: Loads, sent: Sent) -> None:
        self.turn, self._loads, self._sent = turn, loads, sent

    def over(self) -> None:
        self._loads.over(self._sent)


class Fleet:
    """One replica with room for `most` requests."""

    def __init__(self, most: float, **options: Any) -> None:
        self.replicas, self.loads = Replicas(), Loads()
        self.replicas.add(Pool(address_of("http://127.0.0.1:1")))
        self.loads.add()
        self.loads.most[0] = most
        self.replicas.all[0].is_ready(["m"])
        self.hold = Hold(self.replicas, self.loads, HoldOptions(**options), lambda: 10, lambda: 0.5)
        self.sent: list[Attempt] = []

    async def ask(self, number: int, tenant: str = "", priority: int = 0, seconds: float | None = None) -> Attempt:
        turn = Turn(number, 100, tenant, priority=priority)

        def send(places: list[int]) -> Attempt:
            assert places == [0] and self.loads.has_room(0)
            attempt = Attempt(turn, self.loads, self.loads.sent(0, 100))
            self.sent.append(attempt)
            return attempt

        return cast(Attempt, await self.hold.turn("m", turn, seconds, cast(Any, send)))

    def end(self, attempt: Attempt) -> None:
        attempt.over()
        self.hold.end("m", attempt.turn, 10)
        self.hold.look()

    @property
    def numbers(self) -> list[int]:
        return [attempt.turn.number for attempt in self.sent]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(test())


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_turns_come_as_there_is_room() -> None:
    async def test() -> None:
        fleet = Fleet(2)
        whose = [("a", 0), ("a", 0), ("a", 0), ("a", 0), ("b", 0), ("a", -1)]
        asked = [
            asyncio.ensure_future(fleet.ask(number, tenant, priority))
            for number, (tenant, priority) in enumerate(whose, 1)
        ]
        await settled()
        assert fleet.numbers == [1, 2] and fleet.hold.waiting == 4
        for number in range(6):
            fleet.end(fleet.sent[number])
            await settled()
        # The higher class first; then tenants in turn, from when both wait.
        assert fleet.numbers == [1, 2, 6, 3, 5, 4]
        assert [(await each).turn.number for each in asked] == [1, 2, 3, 4, 5, 6]
        assert fleet.hold.waiting == 0 and not fleet.hold._lots

    run(test)


def test_nobody_waits_longer_than_it_may() -> None:
    async def test() -> None:
        fleet, now = Fleet(1, seconds=5.0), asyncio.get_running_loop().time
        first = await fleet.ask(1)
        began = now()
        with pytest.raises(QueueFull, match="All replicas have as much as they take on, after a wait of 5 s"):
            await fleet.ask(2)
        with pytest.raises(QueueFull, match="after a wait of 0.5 s"):
            await fleet.ask(3, seconds=0.5)
        assert now() - began == pytest.approx(5.5)
        fleet.replicas.all[0].is_not(State.UNREACHABLE, "it is gone")
        with pytest.raises(NoReplica, match="since it is gone, after a wait of 5 s"):
            await fleet.ask(4)
        fleet.end(first)
        assert not fleet.hold._lots
        fleet.replicas.all[0].is_ready(["other"])
        with pytest.raises(ModelNotFound):
            await fleet.ask(5)

    run(test)


def test_who_would_wait_too_long_is_refused_at_once() -> None:
    async def test() -> None:
        fleet, now = Fleet(1, seconds=10.0), asyncio.get_running_loop().time
        waiting = [asyncio.ensure_future(fleet.ask(number)) for number in range(4)]
        await settled()
        for number in range(3):
            # One a second.
            await asyncio.sleep(1.0)
            fleet.end(fleet.sent[number])
            waiting.append(asyncio.ensure_future(fleet.ask(10 + number)))
            await settled()
        began = now()
        with pytest.raises(SloUnreachable, match=r"expected after \d\.\d s, and requests may wait for 5 s") as refused:
            await fleet.ask(20, seconds=5.0)
        assert now() == began and refused.value.retry_after >= 1
        # Another tenant's turn would come sooner.
        waiting.append(asyncio.ensure_future(fleet.ask(21, "calm", seconds=5.0)))
        await settled()
        while fleet.loads.requests[0]:
            fleet.end(fleet.sent[-1])
            await settled()
        await asyncio.gather(*waiting)
        assert fleet.numbers.index(21) < fleet.numbers.index(12)

    run(test)


def test_the_lowest_class_goes_first_where_there_are_too_many() -> None:
    async def test() -> None:
        fleet = Fleet(1, requests=2, seconds=60.0)
        first = await fleet.ask(1)
        low, other = (asyncio.ensure_future(fleet.ask(number, priority=number)) for number in (2, 3))
        await settled()
        high = asyncio.ensure_future(fleet.ask(4, priority=0))
        await settled()
        with pytest.raises(QueueFull, match="2 requests wait already, others of which come first"):
            await other
        with pytest.raises(QueueFull, match="2 requests wait already; try again in"):
            await fleet.ask(5, priority=9)
        fleet.end(first)
        fleet.end(await high)
        fleet.end(await low)
        assert fleet.numbers == [1, 4, 2] and not fleet.hold._lots

    run(test)


def test_a_client_that_leaves_as_its_turn_comes_leaves_nothing_behind() -> None:
    async def test() -> None:
        fleet = Fleet(1)
        first = await fleet.ask(1)
        gone, next_one = (asyncio.ensure_future(fleet.ask(number)) for number in (2, 3))
        await settled()
        # It is sent, and its client leaves before it knows.
        fleet.end(first)
        gone.cancel()
        await settled()
        assert gone.cancelled() and fleet.numbers == [1, 2]
        fleet.hold.look()
        await settled()
        fleet.end(await next_one)
        assert fleet.loads.requests == [0] and not fleet.hold._lots and fleet.hold.waiting == 0
        # One that leaves earlier has no turn.
        first = await fleet.ask(4)
        gone = asyncio.ensure_future(fleet.ask(5))
        await settled()
        gone.cancel()
        await settled()
        fleet.end(first)
        assert fleet.numbers == [1, 2, 3, 4] and not fleet.hold._lots

    run(test)


def test_where_nobody_may_wait() -> None:
    async def test() -> None:
        fleet = Fleet(1, seconds=0.0)
        first = await fleet.ask(1)
        with pytest.raises(Overloaded, match="All replicas have as much as they take on; try again in 1 s"):
            await fleet.ask(2)
        fleet.end(first)
        assert not fleet.hold._lots

    run(test)
