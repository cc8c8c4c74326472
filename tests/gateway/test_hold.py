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
        self.places = [0]

    async def ask(
        self, number: int, tenant: str = "", priority: int = 0, seconds: float | None = None, model: str | None = "m"
    ) -> Attempt:
        turn = Turn(number, 100, model, tenant, priority=priority)

        def send(places: list[int]) -> Attempt:
            assert places == self.places and self.loads.has_room(places[0])
            attempt = Attempt(turn, self.loads, self.loads.sent(places[0], 100))
            self.sent.append(attempt)
            return attempt

        return cast(Attempt, await self.hold.turn(turn, seconds, cast(Any, send)))

    def end(self, attempt: Attempt) -> None:
        attempt.over()
        self.hold.end(attempt.turn, 10)
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
        assert fleet.hold.waiting == 0 and fleet.hold.line.unused

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
        assert fleet.hold.line.unused
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
        assert fleet.numbers == [1, 4, 2] and fleet.hold.line.unused

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
        assert fleet.loads.requests == [0] and fleet.hold.line.unused and fleet.hold.waiting == 0
        # One that leaves earlier has no turn.
        first = await fleet.ask(4)
        gone = asyncio.ensure_future(fleet.ask(5))
        await settled()
        gone.cancel()
        await settled()
        fleet.end(first)
        assert fleet.numbers == [1, 2, 3, 4] and fleet.hold.line.unused

    run(test)


def test_where_nobody_may_wait() -> None:
    async def test() -> None:
        fleet = Fleet(1, seconds=0.0)
        first = await fleet.ask(1)
        with pytest.raises(Overloaded, match="All replicas have as much as they take on; try again in 1 s"):
            await fleet.ask(2)
        fleet.end(first)
        assert fleet.hold.line.unused

    run(test)


def test_models_that_share_replicas_take_turns() -> None:
    """Whichever is asked for, priorities and tenants count over all of them."""

    async def test() -> None:
        fleet = Fleet(1, seconds=60.0)
        fleet.replicas.all[0].is_ready(["m", "n"])
        first = await fleet.ask(1)
        asked = [
            asyncio.ensure_future(fleet.ask(number, tenant, priority, model=model))
            for number, tenant, priority, model in [
                (2, "a", 0, "m"), (3, "a", 0, "m"), (4, "b", 0, "n"), (5, "b", 0, "n"), (6, "a", -1, "n"),
            ]
        ]  # fmt: skip
        await settled()
        fleet.end(first)
        for number in range(1, 6):
            await settled()
            fleet.end(fleet.sent[number])
        await asyncio.gather(*asked)
        assert fleet.numbers == [1, 6, 2, 4, 3, 5] and fleet.hold.line.unused

    run(test)


def test_a_model_without_room_holds_up_no_other() -> None:
    async def test() -> None:
        fleet = Fleet(1, seconds=60.0)
        fleet.replicas.add(Pool(address_of("http://127.0.0.1:2"))).is_ready(["n"])
        fleet.loads.add()
        first = await fleet.ask(1)
        waiting = asyncio.ensure_future(fleet.ask(2))
        await settled()
        fleet.places = [1]
        assert (await fleet.ask(3, model="n")).turn.number == 3
        fleet.places = [0]
        fleet.end(first)
        fleet.end(await waiting)

    run(test)


def test_one_that_had_to_go_has_no_turn_any_more() -> None:
    """Also where there is room before it knows; and as many go as have come."""

    async def test() -> None:
        fleet = Fleet(1, requests=2, seconds=60.0)
        first = await fleet.ask(1)
        low = [asyncio.ensure_future(fleet.ask(number, priority=5)) for number in (2, 3)]
        await settled()
        high = [asyncio.ensure_future(fleet.ask(number)) for number in (4, 5)]
        # Both come in one turn of the event loop, and then there is room at once.
        await asyncio.sleep(0)
        assert len(fleet.hold.line) == 2
        fleet.end(first)
        await settled()
        for each in low:
            with pytest.raises(QueueFull, match="others of which come first"):
                await each
        fleet.end(await high[0])
        fleet.end(await high[1])
        assert fleet.numbers == [1, 4, 5] and fleet.loads.requests == [0] and fleet.hold.line.unused

    run(test)


class Abroad:
    """A provider that takes requests which would wait for so many seconds; it has room for `most`."""

    def __init__(self, after: float, most: int = 1000) -> None:
        self.after, self.left, self.asked = after, most, list[float]()

    def __call__(self, seconds: float) -> list[int]:
        self.asked.append(seconds)
        return [1] if seconds >= self.after and self.left else []


async def ask_abroad(fleet: Fleet, number: int, abroad: Abroad) -> list[int]:
    """Where a request that may go out is sent."""
    turn, sent = Turn(number, 100, "m"), list[list[int]]()

    def send(places: list[int]) -> Attempt:
        sent.append(places)
        abroad.left -= places == [1]
        return Attempt(turn, fleet.loads, fleet.loads.sent(0, 100) if places == [0] else cast(Any, None))

    await fleet.hold.turn(turn, None, cast(Any, send), abroad)
    if sent[0] == [1]:
        fleet.hold.end(turn, 10)
    return sent[0]


def test_a_request_goes_out_once_it_has_waited_for_too_long() -> None:
    async def story() -> None:
        fleet, now = Fleet(1, seconds=30.0), asyncio.get_running_loop().time
        first, began, abroad = await fleet.ask(0), now(), Abroad(after=2.0)
        assert await ask_abroad(fleet, 1, abroad) == [1]
        assert 2.0 <= now() - began <= 2.6 and fleet.hold.waiting == 0
        # One that may not go out waits for its turn, and has it.
        stays = asyncio.create_task(fleet.ask(2))
        await asyncio.sleep(5.0)
        assert not stays.done()
        fleet.end(first)
        fleet.end(await stays)
        assert fleet.hold.line.unused

    simulate(story())


def test_a_request_goes_out_at_once_where_it_is_known_to_wait() -> None:
    """Turns come each second, and ten wait."""

    async def story() -> None:
        fleet, now = Fleet(1, seconds=60.0), asyncio.get_running_loop().time
        going = [await fleet.ask(0), *(asyncio.create_task(fleet.ask(number)) for number in range(1, 15))]
        for _ in range(4):
            await asyncio.sleep(1.0)
            going[0] = going[0] if isinstance(going[0], Attempt) else await going[0]
            fleet.end(cast(Attempt, going.pop(0)))
        began, abroad = now(), Abroad(after=5.0)
        assert await ask_abroad(fleet, 20, abroad) == [1] and now() == began
        assert 8 <= abroad.asked[0] <= 15
        for each in going:
            fleet.end(each if isinstance(each, Attempt) else await each)

    simulate(story())


def test_where_providers_have_no_room_a_request_has_its_turn() -> None:
    async def story() -> None:
        fleet = Fleet(1, seconds=30.0)
        first, abroad = await fleet.ask(0), Abroad(after=1.0, most=0)
        waits = asyncio.create_task(ask_abroad(fleet, 1, abroad))
        await asyncio.sleep(4.0)
        assert not waits.done() and len(abroad.asked) > 3
        fleet.end(first)
        assert await waits == [0]

    simulate(story())


@pytest.mark.parametrize("options", [{"seconds": 0.0}, {"requests": 0}, {"seconds": 1.0}])
def test_what_would_be_refused_goes_out(options: dict[str, Any]) -> None:
    async def story() -> None:
        fleet = Fleet(1, **options)
        await fleet.ask(0)
        assert await ask_abroad(fleet, 1, Abroad(after=5.0)) == [1]
        with pytest.raises(Overloaded):
            await fleet.ask(2)

    simulate(story())


def test_a_turn_that_has_ended_ends_once() -> None:
    async def story() -> None:
        fleet = Fleet(1)
        attempt = await fleet.ask(0)
        fleet.end(attempt)
        fleet.hold.end(attempt.turn, 5)
        assert fleet.hold.line.unused
        again = await fleet.hold.turn(attempt.turn, None, cast(Any, lambda places: attempt))
        assert again is attempt and not fleet.hold.line.unused

    simulate(story())


def test_a_request_goes_out_where_the_machines_have_prompts_to_compute() -> None:
    async def story() -> None:
        fleet = Fleet(9, seconds=30.0)
        fleet.hold = Hold(fleet.replicas, fleet.loads, HoldOptions(), lambda: 10, queue=lambda _place: 3.0)
        assert await ask_abroad(fleet, 1, Abroad(after=2.0)) == [1]
        assert await ask_abroad(fleet, 2, Abroad(after=4.0)) == [0]

    simulate(story())


def test_a_request_goes_out_at_once_where_no_machine_can_answer() -> None:
    async def story() -> None:
        fleet, now = Fleet(1, seconds=30.0), asyncio.get_running_loop().time
        fleet.replicas.all[0].is_not(State.UNREACHABLE, "it is off")
        began = now()
        assert await ask_abroad(fleet, 1, Abroad(after=5.0)) == [1] and now() == began

    simulate(story())
