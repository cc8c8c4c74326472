"""A connection to a replica: HTTP/1.1, one request at a time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import httptools

from penstock.gateway.exchange import Exchange, Head, Headers

# The most bytes of an answer's head.
MAX_HEAD_BYTES = 64 * 1024


class Connection(asyncio.Protocol):
    """Sends requests, and tells each one's exchange what comes back.

    Args:
        on_free: called when another request can be sent.
        on_lost: called when none can be sent any more.

    Attributes:
        requests: that were sent on it.
    """

    def __init__(self, on_free: Callable[["Connection"], None], on_lost: Callable[["Connection"], None]) -> None:
        self._on_free, self._on_lost = on_free, on_lost
        self.requests = 0
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: Headers = []
        self._head_bytes = 0
        self._in_body = self._until_end = False
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent, as far as is known."""
        return self._transport is not None and not self._transport.is_closing() and self._exchange is None

    def send(self, parts: Sequence[bytes]) -> Exchange:
        """Send a request, from head to body; nothing else may be under way."""
        if self._exchange is not None:
            raise RuntimeError("a connection has one request at a time")
        assert self._transport is not None, "it is given out when it is open"
        self._exchange = Exchange(self._transport.pause_reading, self._transport.resume_reading)
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._head_bytes, self._in_body, self._until_end = [], 0, False, False
        self.requests += 1
        self._transport.writelines(parts)
        return self._exchange

    async def write(self, piece: bytes) -> None:
        """Send more of the body of what was sent last, as fast as the other side reads, or until it answers."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(piece)
        await self._writable.wait()

    def pause_writing(self) -> None:
        """The other side reads more slowly than is sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The other side has caught up."""
        self._writable.set()

    def close(self) -> None:
        """End it at once, and with it what it does; its replica then stops to compute."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Requests can be sent from now on."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what was not asked for, or is no HTTP/1.1, ends the connection."""
        if self._parser is None:
            # Nothing was asked.
            self.close()
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"its answer is not HTTP/1.1 ({error})")
            return
        if not self._in_body and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(f"the head of its answer is longer than {MAX_HEAD_BYTES} bytes")

    def eof_received(self) -> None:
        """The replica sends nothing more: where an answer has no length, that is its end."""
        exchange = self._exchange
        if exchange is not None and self._until_end:
            self._exchange = None
            exchange.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Neither side can send: what was under way has failed."""
        self._writable.set()
        exchange, self._exchange, self._parser = self._exchange, None, None
        if exchange is not None:
            exchange.fail("its connection broke" if exc is None else f"its connection broke ({exc})", lost=True)
        self._on_lost(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or what comes behind chunks, which is dropped."""
        if not self._in_body:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Tell the exchange the head of its answer."""
        assert self._parser is not None and self._exchange is not None
        status = self._parser.get_status_code()
        if status < 200:
            # What comes before the answer says nothing of it.
            self._headers = []
            return
        self._in_body = True
        # A replica that answers may read no further.
        self._writable.set()
        names = {name for name, _ in self._headers}
        self._until_end = not names & {b"content-length", b"transfer-encoding"} and status not in (204, 304)
        self._exchange.begin(Head(status, self._headers))

    def on_body(self, body: bytes) -> None:
        """Tell the exchange a piece of the body."""
        if self._exchange is not None:
            self._exchange.add(body)

    def on_message_complete(self) -> None:
        """Tell the exchange that its answer is whole; the connection is free in the next turn of the loop."""
        if not self._in_body or self._exchange is None or self._parser is None:
            return
        exchange, self._exchange = self._exchange, None
        keep = self._parser.should_keep_alive()
        # It cannot be let go within its own call.
        asyncio.get_running_loop().call_soon(self._over, keep)
        exchange.end()

    def _over(self, keep: bool) -> None:
        if self._exchange is None:
            self._parser = None
            if keep and self.is_open:
                self._on_free(self)
            else:
                self.close()

    def _fail(self, why: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail(why)
        self.close()
