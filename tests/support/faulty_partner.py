"""A way to a replica that offers blocks on which things go wrong: a proxy between real sockets."""

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.runtime.partner import PartnerFailed
from penstock.runtime.partner_wire import MISSING, Find, Hello, Pull, questions
from penstock.runtime.partner_wire import Point as Place
from support.waiting import PATIENCE

Point = Literal["find", "found", "pull", "pulled"]
What = Literal["drop", "half", "corrupt", "late", "gone"]
POINTS: tuple[Point, ...] = ("find", "found", "pull", "pulled")
WHATS: tuple[What, ...] = ("drop", "half", "corrupt", "late", "gone")


@dataclass(frozen=True)
class Fault:
    """What goes wrong when a message passes a point for the time `after` + 1.

    Attributes:
        what: the connection is closed before it, or in its midst; a bit of it is another one; it waits until all is
            over; the replica is gone from then on.
    """

    point: Point
    what: What
    after: int


class FaultyWay:
    """A place at which a replica is reached, but for one fault; every fault is met once.

    Attributes:
        address: of the place.
        met: whether the fault was.
    """

    def __init__(self, to: str, fault: Fault | None, luck: random.Random) -> None:
        host, _, port = to.rpartition(":")
        self._to, self._fault, self._luck = (host, int(port)), fault, luck
        self._lock = threading.Lock()
        self._left = 0 if fault is None else fault.after
        self.met = False
        self._over = threading.Event()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """All connections end, and what waits goes on into nothing."""
        self._over.set()
        with self._lock:
            ends, self._ends = [*self._ends, self._listener], []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError, PartnerFailed), near, socket.create_connection(self._to) as far:
            with self._lock:
                self._ends += [near, far]
            near.settimeout(PATIENCE)
            far.settimeout(PATIENCE)
            while True:
                asked = _frame(near)
                question = questions.decode(asked[8:])
                found = isinstance(question, Find)
                if not self._pass(
                    far, asked, "find" if found else "pull" if isinstance(question, Pull | Place) else None
                ):
                    return
                if isinstance(question, Hello):
                    continue
                answered = "found" if found else "pulled" if isinstance(question, Pull | Place) else None
                if not self._pass(near, _frame(far), answered):
                    return

    def _pass(self, end: socket.socket, frame: bytearray, point: Point | None) -> bool:
        """Send a message on; False where the connection ends with it."""
        what = self._due(point)
        if what in ("drop", "gone"):
            if what == "gone":
                self.close()
            return False
        if what == "late":
            self._over.wait(PATIENCE)
        elif what == "corrupt":
            place = self._luck.randrange(len(frame))
            frame[place] ^= 1 << self._luck.randrange(8)
        end.sendall(frame[: len(frame) // 2] if what == "half" else frame)
        return what != "half"

    def _due(self, point: Point | None) -> What | None:
        with self._lock:
            if self._fault is None or self.met or point != self._fault.point:
                return None
            self._left -= 1
            self.met = self._left < 0
            return self._fault.what if self.met else None


@contextlib.contextmanager
def faulty_way(to: str, fault: Fault | None, luck: random.Random) -> Iterator[FaultyWay]:
    """One for the block."""
    way = FaultyWay(to, fault, luck)
    try:
        yield way
    finally:
        way.close()


def _frame(end: socket.socket) -> bytearray:
    """A whole message as it is on its way."""
    head = _exactly(end, 8)
    size = int.from_bytes(head, "little")
    return head if size == MISSING else head + _exactly(end, size)


def _exactly(end: socket.socket, size: int) -> bytearray:
    content = bytearray()
    while len(content) < size:
        piece = end.recv(size - len(content))
        if not piece:
            raise PartnerFailed("it is closed")
        content += piece
    return content
