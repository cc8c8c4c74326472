"""Requests that wait at the gateway: while no replica can answer, or while all have as much as they take on."""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.access.admission import spread_retry
from penstock.core.errors import ModelNotFound, PenstockError, QueueFull, SloUnreachable
from penstock.gateway.errors import NoReplica
from penstock.gateway.options import HoldOptions
from penstock.gateway.replicas import Replicas
from penstock.routing.line import Line, Turn
from penstock.routing.loads import Loads

if TYPE_CHECKING:
    from penstock.gateway.dispatch import Attempt

# A request is refused at once where it is expected to wait longer than this part of what it may: turns come sooner or
# later than expected, and who is refused should learn it at once.
_EXPECTED_PART = 0.5
# Sends a request to one of some replicas.
SendTo = Callable[[list[int]], "Attempt"]


class _Lot:
    """Those who want one model."""

    def __init__(self) -> None:
        self.line = Line()
        self.waiting: dict[int, tuple[asyncio.Future[Attempt], SendTo]] = {}


class Hold:
    """Lets requests wait for their turns; not for too long, and not too many of them.

    Args:
        expected: tokens of an answer, in the mean.
        chance: a number from 0 up to 1, another one at each call.

    Attributes:
        waiting: how many wait now.
    """

    def __init__(
        self,
        replicas: Replicas,
        loads: Loads,
        options: HoldOptions,
        expected: Callable[[], int],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._replicas, self._loads, self._options = replicas, loads, options
        self._expected, self._chance = expected, chance
        self._lots: dict[str | None, _Lot] = {}
        self.waiting = 0
        replicas.on_news = self.look

    async def turn(self, model: str | None, turn: Turn, seconds: float | None, send: SendTo) -> "Attempt":
        """Send a request when its turn has come; it is to `end` later.

        `seconds` are those that it has in all; None: any number. Raises ModelNotFound, NoReplica, QueueFull,
        SloUnreachable.
        """
        lot = self._lots.get(model) or _Lot()
        places, nobody = self._open(model)
        self._lots[model] = lot
        if places and not len(lot.line):
            now = _now()
            lot.line.enter(turn, now)
            lot.line.serve(turn, self._expected(), now)
            return send(places)
        most = self._options.seconds if seconds is None else min(seconds, self._options.seconds)
        try:
            self._check(lot, turn, most, nobody)
            return await self._wait(model, lot, turn, most, send)
        finally:
            self._forget(model)

    def end(self, model: str | None, turn: Turn, output: int) -> None:
        """A request that had its turn is over, with `output` tokens of an answer."""
        self._lots[model].line.end(turn, output)
        self._forget(model)

    def look(self) -> None:
        """Something has changed: those whose turn has come are sent."""
        if not self.waiting:
            return
        for model, lot in list(self._lots.items()):
            try:
                self._serve(model, lot)
            except ModelNotFound as error:
                for future, _ in lot.waiting.values():
                    _tell(future, error)

    def _serve(self, model: str | None, lot: _Lot) -> None:
        while (turn := lot.line.first()) is not None:
            places, nobody = self._open(model)
            lot.line.moves(_now(), moves=not nobody)
            if not places:
                return
            future, send = lot.waiting.pop(turn.number)
            lot.line.serve(turn, self._expected(), _now())
            future.set_result(send(places))

    async def until(self, found: Callable[[], list[int]]) -> list[int]:
        """What is found, once there is any; nothing where it takes too long, or too many wait."""
        ends = _now() + self._options.seconds
        if self.waiting >= self._options.requests:
            return found()
        self.waiting += 1
        try:
            while not (places := found()):
                self._replicas.changed.clear()
                async with asyncio.timeout_at(ends):
                    await self._replicas.changed.wait()
            return places
        except TimeoutError:
            return []
        finally:
            self.waiting -= 1

    def _open(self, model: str | None) -> tuple[list[int], str]:
        """Places of replicas that take on more; why none can answer, where that is so. Raises ModelNotFound."""
        try:
            ready = self._replicas.candidates(model)
        except NoReplica as error:
            return [], error.message
        return [place for place in ready if self._loads.has_room(place)], ""

    def _check(self, lot: _Lot, turn: Turn, most: float, nobody: str) -> None:
        """Refuse a request that cannot wait, or another one in its place."""
        if not most:
            raise NoReplica(nobody) if nobody else self._refusal(lot, "All replicas have as much as they take on")
        expected = None if nobody else lot.line.wait(turn)
        if expected is not None and expected > _EXPECTED_PART * most:
            cause = f"Its turn is expected after {expected:.1f} s, and requests may wait for {most:g} s"
            raise self._refusal(lot, cause, expected - _EXPECTED_PART * most, kind=SloUnreachable)
        if self.waiting < self._options.requests:
            return
        why = f"{nobody.rpartition(';')[0]}, and" if nobody else "All replicas have as much as they take on, and"
        full = f"{why} {self.waiting} requests wait already"
        worst = lot.line.worst(turn)
        if worst is turn:
            raise self._refusal(lot, full, kind=NoReplica if nobody else QueueFull)
        future, _ = lot.waiting[worst.number]
        _tell(future, self._refusal(lot, f"{full}, others of which come first"))

    async def _wait(self, model: str | None, lot: _Lot, turn: Turn, most: float, send: SendTo) -> "Attempt":
        future: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        lot.line.enter(turn, _now())
        lot.waiting[turn.number] = future, send
        self.waiting += 1
        try:
            # Where this is cancelled, the future is not, so that nothing that was sent is lost.
            done, _ = await asyncio.wait((future,), timeout=most)
            if done:
                return future.result()
            _, nobody = self._open(model)
            if nobody:
                raise NoReplica(f"{nobody.rpartition(';')[0]}, after a wait of {most:g} s; try again later.")
            raise self._refusal(lot, f"All replicas have as much as they take on, after a wait of {most:g} s")
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:
                future.result().over()
                lot.line.end(turn, 0)
            raise
        finally:
            self.waiting -= 1
            if lot.waiting.pop(turn.number, None) is not None:
                lot.line.leave(turn, _now())

    def _refusal(
        self,
        lot: _Lot,
        cause: str,
        seconds: float | None = None,
        kind: type[NoReplica | QueueFull | SloUnreachable] = QueueFull,
    ) -> PenstockError:
        """The error, with when to come back: when those who wait will have had their turns."""
        if seconds is None:
            seconds = lot.line.seconds
        after = spread_retry(seconds, self._chance())
        return kind(f"{cause}; try again in {after} s.", retry_after=after)

    def _forget(self, model: str | None) -> None:
        lot = self._lots.get(model)
        if lot is not None and lot.line.unused:
            del self._lots[model]


def _tell(future: "asyncio.Future[Attempt]", error: PenstockError) -> None:
    if not future.done():
        future.set_exception(error)


def _now() -> float:
    return asyncio.get_running_loop().time()
