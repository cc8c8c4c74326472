"""One request on a connection to a replica, and its answer as it comes."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.gateway.errors import ReplicaBroken

Headers = list[tuple[bytes, bytes]]

# Bytes of an answer that wait for the client before its connection is read no further, and until it is again.
MOST_WAITING = 128 * 1024
_FEW_WAITING = MOST_WAITING // 4


# Statuses that say that a replica did nothing, or broke while it did, so that another may answer.
_ELSEWHERE = frozenset((500, 502, 503, 529))
# What says that it has too much to do: nothing is wrong with it.
_BUSY = frozenset((503, 529))
_FAULTS = 500
# What a replica does not know how to do is no fault of it.
_NOT_DONE = 501


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: Headers

    @property
    def is_refusal(self) -> bool:
        """Whether another replica may answer."""
        return self.status in _ELSEWHERE

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong with the replica, or with what stands before it."""
        return self.status >= _FAULTS and self.status not in _BUSY and self.status != _NOT_DONE


class Exchange:
    """What a connection has received of an answer, until it is taken.

    Args:
        pause, resume: stop and go on with reading the connection.

    Attributes:
        may_move: whether another replica is to be asked instead where this one is left now.
    """

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause, self._resume = pause, resume
        self._now = asyncio.get_running_loop().time
        self._heard = self._now()
        self._is_lost = False
        self.may_move: Callable[[], bool] = lambda: False
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._paused = False
        self._ended = False
        self._broken: ReplicaBroken | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended or self._broken is not None

    @property
    def begun(self) -> bool:
        """Whether an answer has begun."""
        return self._head is not None

    def silent(self, now: float) -> float:
        """Seconds for which more of it has been waited for; `now` is on the event loop's clock."""
        return 0.0 if self._waiter is None else now - self._heard

    @property
    def is_lost(self) -> bool:
        """Whether the connection broke before anything came."""
        return self._is_lost

    @property
    def whole(self) -> bool:
        """Whether the answer has come to its end."""
        return self._ended

    async def head(self) -> Head:
        """The beginning, once it is there. Raises ReplicaBroken."""
        while self._head is None:
            if self._broken is not None:
                raise self._broken
            await self._wait()
        return self._head

    async def piece(self) -> bytes:
        """What came since this was asked before, at least a byte; nothing at the end. Raises ReplicaBroken.

        What came before the connection broke is told first.
        """
        while not self._pieces:
            if self._ended:
                return b""
            if self._broken is not None:
                raise self._broken
            await self._wait()
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        if self._paused:
            self._paused = False
            self._resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def body(self, most: int) -> bytes:
        """What is left of it, to its end. Raises ReplicaBroken, also where it is longer than `most` bytes."""
        body = bytearray()
        while piece := await self.piece():
            body += piece
            if len(body) > most:
                raise ReplicaBroken(f"its answer is longer than {most} bytes")
        return bytes(body)

    def begin(self, head: Head) -> None:
        """The head of the answer has come."""
        self._head = head
        self._wake()

    def add(self, piece: bytes) -> None:
        """Some of the body has come."""
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > MOST_WAITING and not self._paused:
            self._paused = True
            self._pause()
        self._wake()

    def end(self) -> None:
        """All of it has come: its connection is read on, for another."""
        self._ended = True
        if self._paused:
            self._paused = False
            self._resume()
        self._wake()

    def fail(self, why: str, *, lost: bool = False) -> None:
        """No more will come of what has not ended; where it is `lost`, since the connection broke."""
        if not self.ended:
            self._is_lost = lost and self._head is None
            self._broken = ReplicaBroken(why)
            self._wake()

    async def _wait(self) -> None:
        self._heard = self._now()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
