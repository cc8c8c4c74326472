"""Requests that wait at the gateway: while no replica can answer, or while all have as much as they take on."""

import asyncio
import random
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from penstock.access.admission import spread_retry
from penstock.core.errors import ModelNotFound, Overloaded, PenstockError, QueueFull, SloUnreachable
from penstock.gateway.errors import NoReplica
from penstock.gateway.options import HoldOptions
from penstock.gateway.replicas import Replicas
from penstock.routing.line import Line, Turn
from penstock.routing.loads import Loads

if TYPE_CHECKING:
    from penstock.gateway.attempt import Attempt

# A request is refused at once where it is expected to wait longer than this part of what it may: turns come sooner or
# later than expected, and who is refused should learn it at once.
_EXPECTED_PART = 0.5
_FULL = "All replicas have as much as they take on"
# Between two looks at whether a request that has waited can go out.
_LOOK_SECONDS = 0.5
# Sends a request to one of some replicas.
SendTo = Callable[[list[int]], "Attempt"]
# Places of the providers that take a request which has to wait for that number of seconds.
Abroad = Callable[[float], list[int]]


class Hold:
    """Lets requests wait for their turns; not for too long, and not too many of them.

    Args:
        expected: tokens of an answer, in the mean.
        queue: seconds that a request waits at a replica.
        chance: a number from 0 up to 1, another one at each call.

    Attributes:
        line: those who wait.
    """

    def __init__(
        self,
        replicas: Replicas,
        loads: Loads,
        options: HoldOptions,
        expected: Callable[[], int],
        chance: Callable[[], float] = random.random,
        queue: Callable[[int], float] = lambda _place: 0.0,
    ) -> None:
        self._replicas, self._loads, self._options, self._queue = replicas, loads, options, queue
        self._expected, self._chance = expected, chance
        self.line = Line()
        self._sending: dict[int, tuple[asyncio.Future[Attempt], Turn, SendTo]] = {}
        # Streams that wait for another replica to go on with them.
        self._others = 0
        replicas.on_news = self.look

    @property
    def seconds(self) -> float:
        """For which a request waits at most, where it does not say."""
        return self._options.seconds

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return len(self.line) + self._others

    @property
    def turns(self) -> list[Turn]:
        """Those who wait for their turns."""
        return [turn for _, turn, _ in self._sending.values()]

    async def turn(self, turn: Turn, seconds: float | None, send: SendTo, abroad: Abroad | None = None) -> "Attempt":
        """Send a request when its turn has come, or to a provider where that takes too long; it is to `end` later.

        `seconds` are those that it has in all; None: any number. Raises ModelNotFound, NoReplica, QueueFull,
        SloUnreachable.
        """
        places, nobody = self._open(turn.model)
        if places and not self.line.length(turn.model):
            waits = 0.0 if abroad is None else min(map(self._queue, places))
            away = abroad(waits) if abroad is not None and waits else []
            return self._at_once(turn, send, away or places)
        # Where providers alone can answer, those who wait already come first.
        if abroad is not None and not (nobody and self.line.length(turn.model)):
            expected = inf if nobody else self.line.wait(turn, _now()) or 0.0
            if away := abroad(expected):
                return self._at_once(turn, send, away)
        most = self._options.seconds if seconds is None else max(0.0, min(seconds, self._options.seconds))
        try:
            self._check(turn, most, nobody)
            return await self._wait(turn, most, nobody, send, abroad)
        except Overloaded:
            # What would be refused may go out, however little it has waited.
            away = [] if abroad is None else abroad(inf)
            if not away:
                raise
        return self._at_once(turn, send, away)

    def _at_once(self, turn: Turn, send: SendTo, places: list[int]) -> "Attempt":
        """Send a request that does not wait, or no longer, which is no turn that the line learns from."""
        self.line.at_once(turn, self._expected(), _now())
        return self._sent(turn, send, places)

    def end(self, turn: Turn, output: int | None) -> None:
        """A request that had its turn is over, with `output` tokens of an answer; None: nothing says how many."""
        self.line.end(turn, output)

    def look(self) -> None:
        """Something has changed: those whose turn has come are sent."""
        if not self.line:
            return
        opened: dict[str | None, list[int]] = {}
        for model in self.line.models:
            self._see(model, opened)
        while opened and (turn := self.line.first(opened)) is not None:
            future, _, send = self._sending.pop(turn.number)
            try:
                future.set_result(self._serve(turn, send, opened[turn.model]))
            except Exception as error:
                # It is that request's, not that of the one whose end has let it go on.
                future.set_exception(error)
            # Models may share replicas.
            for model in list(opened):
                self._see(model, opened)

    def _serve(self, turn: Turn, send: SendTo, places: list[int]) -> "Attempt":
        """Send a request that has waited for its turn."""
        self.line.serve(turn, self._expected(), _now())
        return self._sent(turn, send, places)

    def _sent(self, turn: Turn, send: SendTo, places: list[int]) -> "Attempt":
        """Send a request whose turn it is. Where that raises, its turn is over."""
        try:
            return send(places)
        except Exception:
            self.line.end(turn, 0)
            raise

    def _see(self, model: str | None, opened: dict[str | None, list[int]]) -> None:
        """Note whether anything for a model can be sent now, and where."""
        opened.pop(model, None)
        try:
            places, nobody = self._open(model)
        except ModelNotFound as error:
            for _, turn, _ in list(self._sending.values()):
                if turn.model == model:
                    self._drop(turn, error)
            return
        self.line.moves(model, _now(), moves=not nobody)
        if places:
            opened[model] = places

    async def until(self, found: Callable[[], list[int]]) -> list[int]:
        """What is found, once there is any; nothing where it takes too long, or too many wait."""
        ends = _now() + self._options.seconds
        if self.waiting >= self._options.requests:
            return found()
        self._others += 1
        try:
            while not (places := found()):
                self._replicas.changed.clear()
                async with asyncio.timeout_at(ends):
                    await self._replicas.changed.wait()
            return places
        except TimeoutError:
            return []
        finally:
            self._others -= 1

    def _open(self, model: str | None) -> tuple[list[int], str]:
        """Places of replicas that take on more; why none can answer, where that is so. Raises ModelNotFound."""
        try:
            ready = self._replicas.candidates(model)
        except NoReplica as error:
            return [], error.message
        return [place for place in ready if self._loads.has_room(place)], ""

    def _check(self, turn: Turn, most: float, nobody: str) -> None:
        """Refuse a request that cannot wait, or another one in its place."""
        if not most:
            raise NoReplica(nobody) if nobody else self._refusal(turn, _FULL)
        expected = None if nobody else self.line.wait(turn, _now())
        if expected is not None and expected > _EXPECTED_PART * most:
            cause = f"Its turn is expected after {expected:.1f} s, and requests may wait for {most:g} s"
            raise self._refusal(turn, cause, expected - _EXPECTED_PART * most, kind=SloUnreachable)
        if self.waiting < self._options.requests:
            return
        why = nobody.rpartition(";")[0] or _FULL
        full = f"{why}, and {self.waiting} requests wait already"
        worst = self.line.worst(turn)
        if worst is turn:
            raise self._refusal(turn, full, kind=NoReplica if nobody else QueueFull)
        self._drop(worst, self._refusal(worst, f"{full}, others of which come first"))

    async def _wait(self, turn: Turn, most: float, nobody: str, send: SendTo, abroad: Abroad | None) -> "Attempt":
        future: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        self.line.enter(turn, _now(), _now() + most)
        self.line.moves(turn.model, _now(), moves=not nobody)
        self._sending[turn.number] = future, turn, send
        try:
            # Where this is cancelled, the future is not, so that nothing that was sent is lost.
            while left := max(0.0, turn.until - _now()):
                look = left if abroad is None else min(left, _LOOK_SECONDS)
                done, _ = await asyncio.wait((future,), timeout=look)
                if done:
                    return future.result()
                if abroad is not None and (away := abroad(inf if self._open(turn.model)[1] else _now() - turn.since)):
                    del self._sending[turn.number]
                    self.line.leave(turn, _now())
                    return self._at_once(turn, send, away)
            _, nobody = self._open(turn.model)
            if nobody:
                raise NoReplica(f"{nobody.rpartition(';')[0]}, after a wait of {most:g} s; try again later.")
            raise self._refusal(turn, f"{_FULL}, after a wait of {most:g} s")
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:
                future.result().over()
                self.line.end(turn, 0)
            raise
        finally:
            if self._sending.pop(turn.number, None) is not None:
                self.line.leave(turn, _now())

    def _drop(self, turn: Turn, error: PenstockError) -> None:
        """One that waits is refused, and has no turn from now on."""
        future, _, _ = self._sending.pop(turn.number)
        self.line.leave(turn, _now())
        future.set_exception(error)

    def _refusal(
        self, turn: Turn, cause: str, seconds: float | None = None, kind: type[Overloaded] = QueueFull
    ) -> Overloaded:
        """The error, with when to come back: when those who wait will have had their turns."""
        if seconds is None:
            seconds = self.line.seconds(turn.model, _now())
        after = spread_retry(seconds, self._chance())
        return kind(f"{cause}; try again in {after} s.", retry_after=after)


def _now() -> float:
    return asyncio.get_running_loop().time()
