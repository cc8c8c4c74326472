"""A partner over TCP: connections that are used again, one question at a time on each."""

import secrets
import socket
import threading
import time
from collections.abc import Sequence

import msgspec

from penstock.cache.shelf_room import Name
from penstock.configuration.listening import parse_host_and_port
from penstock.runtime.partner import PartnerFailed
from penstock.runtime.partner_wire import (
    MOST_MESSAGE,
    Find,
    Hello,
    Pull,
    Question,
    Release,
    Renew,
    encode,
    receive,
    send,
)

# For a connection, and for an answer with it.
_CONNECT_SECONDS, _ANSWER_SECONDS = 1.0, 2.0
_booleans = msgspec.msgpack.Decoder(list[bool]).decode


class TcpPartner:
    """A replica at a host and port."""

    def __init__(self, address: str) -> None:
        self._place = parse_host_and_port("the place of an offer", address)
        self._holder = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []

    def find(self, names: Sequence[Name], awaited: int, seconds: float) -> list[bool]:
        """Which slots are there, once the last `awaited` are, or the seconds are over."""
        answer = self.ask(Find(list(names), awaited, seconds), MOST_MESSAGE, seconds)
        try:
            found = _booleans(answer or b"")
        except msgspec.DecodeError as error:
            raise PartnerFailed(f"its answer cannot be read: {error}") from None
        if len(found) != len(names):
            raise PartnerFailed(f"it told of {len(found)} slots, and was asked for {len(names)}")
        return found

    def pull(self, name: Name, most: int) -> bytes | bytearray | None:
        """A slot's value; None where it is not there, or longer than `most` bytes."""
        return self.ask(Pull(name, most), most)

    def renew(self, names: Sequence[Name], seconds: float) -> None:
        """Have the leases of slots begin anew, for this number of seconds."""
        self.ask(Renew(list(names), seconds), 0)

    def release(self, names: Sequence[Name]) -> None:
        """Give the leases of slots back, so that they may make room."""
        self.ask(Release(list(names)), 0)

    def close(self) -> None:
        """Let go of connections, until it is asked again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for end in idle:
            end.close()

    def ask(self, question: Question, most: int, seconds: float = 0.0) -> bytearray | None:
        """The answer to a question, of at most `most` bytes, which may take some `seconds` longer than others."""
        until = time.monotonic() + _ANSWER_SECONDS + seconds
        with self._lock:
            end = self._idle.pop() if self._idle else None
        if end is not None:
            try:
                return self._asked(end, question, most, until)
            except PartnerFailed as error:
                # What was open may have been closed since: that says nothing of whether a new one can be made.
                if not isinstance(error.__cause__, ConnectionError):
                    raise
        return self._asked(self._connect(), question, most, until)

    def _asked(self, end: socket.socket, question: Question, most: int, until: float) -> bytearray | None:
        """The answer on a connection, which is used again if all goes well. Raises PartnerFailed."""
        try:
            # A time that is over is no time without a limit.
            end.settimeout(max(1e-3, until - time.monotonic()))
            send(end, encode(question))
            answer = receive(end, most, until)
        except OSError as error:
            end.close()
            raise _failed(error) from error
        with self._lock:
            self._idle.append(end)
        return answer

    def _connect(self) -> socket.socket:
        try:
            end = socket.create_connection(self._place, _CONNECT_SECONDS)
        except OSError as error:
            raise _failed(error) from error
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send(end, encode(Hello(holder=self._holder)))
        except OSError as error:
            end.close()
            raise _failed(error) from error
        return end


def _failed(error: OSError) -> PartnerFailed:
    return PartnerFailed(error.strerror or str(error) or type(error).__name__)
