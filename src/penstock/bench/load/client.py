"""A client for HTTP/1.1 that costs little itself: it shares the machine with the server that it measures.

Connections are kept and used again, as clients do. Each piece of an answer is stamped once, when it arrives, and
handed on before anything else is done.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import cast

import httptools

from penstock.bench.load.address import Address

_STALE_SECONDS = 0.25

# Takes a piece of the answer's body and its time; whether the client is to leave.
Take = Callable[[bytes, float], bool]


class TransferError(Exception):
    """No whole answer came: `kind` says why in a word or two."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Exchange:
    """One request and its answer.

    Attributes:
        sent: when the request was written, on `time.monotonic`.
        ended: when the answer's last byte came, or the client left.
        status: of HTTP, 0 before there is one.
        content_type: of the answer.
        retry_after: seconds after which a refused request may come back, where the answer says so.
        body: of an answer that is not a success; other bodies go to `take` piece by piece.
    """

    __slots__ = ("_length_known", "_take", "body", "content_type", "done", "ended", "retry_after", "sent", "status")

    def __init__(self, take: Take, done: "asyncio.Future[None]") -> None:
        self._take = take
        self._length_known = False
        self.done = done
        self.sent: float | None = None
        self.ended = 0.0
        self.status = 0
        self.content_type = ""
        self.retry_after: int | None = None
        self.body = b""

    def header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        match name.lower():
            case b"content-type":
                self.content_type = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._length_known = True
            case b"retry-after" if value.isdigit():
                self.retry_after = int(value)

    def piece(self, data: bytes, now: float) -> bool:
        """A piece of the body; whether the client is to leave."""
        if self.status == 200:
            return self._take(data, now)
        self.body = (self.body + data)[: 1 << 16]
        return False

    @property
    def was_stale(self) -> bool:
        """Whether the connection had been closed before the request: that is noticed at once."""
        return not self.status and self.sent is not None and self.ended - self.sent < _STALE_SECONDS

    def finish(self, error: TransferError | None = None) -> None:
        """Note the end of the exchange, and wake what waits for it."""
        if not self.done.done():
            self.ended = time.monotonic()
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)

    def lost(self) -> None:
        """The connection is gone: the end of an answer that does not say its length, and of no other."""
        if self.status and not self._length_known:
            self.finish()
        else:
            self.finish(TransferError("connection lost", "the server closed the connection before the answer's end"))


class _Connection(asyncio.Protocol):
    """One connection, with at most one exchange at a time."""

    def __init__(self, idle: "list[_Connection]") -> None:
        self._idle = idle
        self._exchange: Exchange | None = None
        self._now = 0.0
        self.used = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's have all that asyncio.Transport has without being one.
        self.transport = cast(asyncio.Transport, transport)

    def start(self, request: bytes, exchange: Exchange) -> None:
        """Send a request, whose answer goes to `exchange`."""
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        exchange.sent = time.monotonic()
        self.transport.write(request)

    def leave(self) -> None:
        """End the exchange, and the connection with it."""
        self._exchange = None
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        if self._exchange is None:
            self.transport.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if (exchange := self._exchange) is not None:
                self.leave()
                exchange.finish(TransferError("not HTTP", f"the answer is not HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._exchange is not None:
            self._exchange.lost()
            self._exchange = None

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None:
            self._exchange.header(name, value)

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.piece(body, self._now):
            self.leave()
            exchange.finish()

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._parser.should_keep_alive():
            self.used = True
            self._idle.append(self)
        else:
            self.transport.close()
        exchange.finish()


class Client:
    """Sends requests to one server."""

    def __init__(self, address: Address, key: str | None = None, timeout: float = 600.0) -> None:
        self.address = address
        self._timeout = timeout
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[_Connection] = []
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        self._headers = f"Host: {address.authority}\r\n{authorization}User-Agent: penstock-bench\r\n"

    async def fetch(self, method: str, path: str, body: bytes | None, take: Take) -> Exchange:
        """Send a request and take its answer. Raises TransferError.

        A kept connection that the server has closed in the meantime is no failure: the request goes over a new one.
        """
        head = f"{method} {self.address.path}{path} HTTP/1.1\r\n{self._headers}"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request = head.encode("latin-1") + b"\r\n" + (body or b"")
        deadline = time.monotonic() + self._timeout
        while True:
            connection = await self._connection(deadline)
            exchange = Exchange(take, asyncio.get_running_loop().create_future())
            connection.start(request, exchange)
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await exchange.done
            except TransferError as error:
                if connection.used and error.kind == "connection lost" and exchange.was_stale:
                    continue
                raise
            except TimeoutError:
                connection.leave()
                raise TransferError("timeout", f"there was no whole answer after {self._timeout:g} s") from None
            except asyncio.CancelledError:
                connection.leave()
                raise
            return exchange

    def close(self) -> None:
        """Close the connections that are kept."""
        for connection in list(self._idle):
            # Without a farewell in TLS: nothing would wait for it.
            connection.transport.abort()
        self._idle.clear()

    async def _connection(self, deadline: float) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        loop, address = asyncio.get_running_loop(), self.address
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                _, made = await loop.create_connection(
                    lambda: _Connection(self._idle), address.host, address.port, ssl=self._tls
                )
        except TimeoutError:
            raise TransferError("timeout", f"there was no connection after {self._timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise TransferError("no connection", f"its certificate is not trusted: {error.verify_message}") from None
        except ssl.SSLError as error:
            message = f"there is no TLS with it ({(error.reason or 'unknown').lower().replace('_', ' ')})"
            raise TransferError("no connection", message) from None
        except OSError as error:
            raise TransferError("no connection", _reason(error)) from None
        return made


def _reason(error: OSError) -> str:
    """What the system says, without the address, which the reader knows."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    return (error.strerror or str(error)).lower()
