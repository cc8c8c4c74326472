"""HTTP/1.1 as uvicorn speaks it, with bounds on what a client can hold without finishing its request."""

import asyncio
import logging
from functools import partial
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock.core.errors import PenstockError, RequestError
from penstock.http.arrival import ARRIVED, arrival
from penstock.http.connections import Connections
from penstock.http.error_bodies import error_body
from penstock.http.errors import HeadersTooLarge, RequestTooSlow, TooManyConnections
from penstock.http.heads import check_head
from penstock.http.stall import STALL_SECONDS, StalledClientWatch
from penstock.observability.request_ids import REQUEST_ID, new_request_id

MAX_HEADER_BYTES = 64 * 1024
# Seconds for a request's head to arrive, from its first byte or from when the connection was made.
HEAD_SECONDS = 15.0
# The least bytes of a body that arrive in each of these spans, while the body is read.
BODY_SPAN_SECONDS = 30.0
LEAST_BODY_BYTES = 16 * 1024
# Bytes that are passed over of a body whose request is answered already.
MAX_UNWANTED_BYTES = 4 * 1024 * 1024
# The most bytes of chunks beside their contents: a fixed part, and this many for each byte of content (the smallest
# chunks have 5).
MAX_FRAMING_BYTES = 64 * 1024
_FRAMING_TIMES = 8
# The most requests that one connection has sent ahead of their answers.
MAX_PIPELINED = 64
# Up to this many sent ahead the connection is still read, since only reading shows that its client has left.
_READ_PIPELINED = 8
_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}

logger = logging.getLogger("penstock.server")


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Bytes of a head are counted as they arrive, so that the parser never collects more of one name or value either.
    What has no meaning, or two, is refused, and ends the connection behind the answers to what came before it.

    Args:
        connections: all of the server's.
        stall_timeout: seconds for which a client may take nothing of an answer.
    """

    _head_bytes = 0
    _in_body = False
    # Bytes of the body since the last look, of its contents in all, and of what came around them.
    _body_bytes = _content_bytes = _framing_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _upgrading = False
    _refused = False
    # The request that is being answered, which is not the newest where more were sent ahead.
    _answering: RequestResponseCycle | None = None

    def __init__(
        self, *arguments: Any, connections: Connections, stall_timeout: float = STALL_SECONDS, **others: Any
    ) -> None:
        super().__init__(*arguments, **others)
        self._connections = connections
        self._stall = StalledClientWatch(stall_timeout)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first request, or refuse the connection."""
        super().connection_made(transport)
        if self._connections.add(self):
            self._wait(HEAD_SECONDS)
        else:
            self._refuse(TooManyConnections())

    def connection_lost(self, exc: Exception | None) -> None:
        """Either side has closed the connection."""
        self._connections.remove(self)
        self._stop_waiting()
        self._stall.end()
        if self._answering is not None and not self._answering.response_complete:
            # uvicorn tells the newest request only.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what the connection has received."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        if self._in_body:
            self._body_bytes += len(data)
            self._framing_bytes += len(data)
        else:
            self._head_bytes += len(data)
            if self._timer is None:
                self._wait(HEAD_SECONDS)
        try:
            self._parse(data)
            self._check_bounds()
        except PenstockError as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            # What a callback raises comes as the context of the parser's own error.
            cause = error.__context__
            known = isinstance(cause, PenstockError)
            self._refuse(cause if known else RequestError("The request is not valid HTTP/1.1."))  # type: ignore[arg-type]

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # No other protocol is spoken here, and a client that offers one has to be served without it. The parser
                # can't be told so; hence another parser reads the request without the offer.
                self._upgrading = False
                head = [
                    b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
                ]
                head += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
                data = b"\r\n".join([*head, b"", data[upgrade.args[0] :]])
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _check_bounds(self) -> None:
        if not self._in_body:
            if self._head_bytes > MAX_HEADER_BYTES:
                raise HeadersTooLarge(f"The request's headers are longer than {MAX_HEADER_BYTES} bytes; send fewer.")
        elif self._framing_bytes > MAX_FRAMING_BYTES + _FRAMING_TIMES * self._content_bytes:
            raise RequestError("The body's chunks are mostly extensions or trailers; leave them out.")
        elif self.cycle.response_complete and self._content_bytes > MAX_UNWANTED_BYTES:
            self._close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes behind a body is no part of the head, and of no use."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head of a request, and begin the request."""
        method = self.parser.get_method()
        check_head(method, self.url, self.parser.get_http_version(), self.headers)
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise RequestError(f"More than {MAX_PIPELINED} requests wait on one connection; read their answers first.")
        self._connections.begin(self)
        if not self._connections.allow(httptools.parse_url(self.url).path):
            raise TooManyConnections()
        # Asking the kernel takes as long as checking the head, so only those ask who want to know.
        self.scope["state"][ARRIVED] = partial(arrival, self.transport)
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= _READ_PIPELINED:
            self.flow.resume_reading()
        self._in_body, self._body_bytes, self._content_bytes, self._framing_bytes = True, 0, 0, 0
        if not self.flow.write_paused:
            self._stall.end()
        self._wait(BODY_SPAN_SECONDS)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._content_bytes += len(body)
        self._framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect the head of the next request."""
        if self._upgrading:
            return
        super().on_message_complete()
        self._in_body, self._head_bytes = False, 0
        self._stop_waiting()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written for it."""
        super().pause_writing()
        self._stall.begin(self.transport)

    def resume_writing(self) -> None:
        """The client has read almost all that was written for it."""
        super().resume_writing()
        # A connection that is being closed is watched until its client has read all.
        if not self.transport.is_closing():
            self._stall.end()

    def on_response_complete(self) -> None:
        """An answer was written; its client may not have read all of it yet."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._connections.end(self)
        if self.transport.get_write_buffer_size():
            self._stall.begin(self.transport)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._look)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The time that was set has passed without the end of what is awaited."""
        self._timer = None
        # Bytes that the server has not read yet are not the client's fault.
        if self.flow.read_paused or (self._in_body and self._body_bytes >= LEAST_BODY_BYTES):
            self._body_bytes = 0
            self._wait(BODY_SPAN_SECONDS if self._in_body else HEAD_SECONDS)
        elif not self._in_body:
            self._refuse(
                RequestTooSlow(f"The request's head did not arrive within {HEAD_SECONDS:g} s; send it at once.")
            )
        else:
            # The code that reads the body learns that it does not end.
            self._close()

    def _refuse(self, error: PenstockError) -> None:
        """Say why, and end the connection, behind the answers to whole requests that came before."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_waiting()
        # What is no request has an id all the same, by which its line in the log is found.
        token = REQUEST_ID.set(new_request_id())
        try:
            logger.info("refused what a connection sent: %d %s", error.http_status, error.message)
            self._tell(error)
        finally:
            REQUEST_ID.reset(token)

    def _tell(self, error: PenstockError) -> None:
        """Answer with the error, unless an answer has begun."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._end_with(error)
        elif not self._in_body:
            cycle.keep_alive = False
        elif cycle.response_started or self.pipeline:
            self._close()
        else:
            # The body of this request is wrong. The code that reads it is told that it does not end.
            cycle.disconnected = True
            cycle.message_event.set()
            self._end_with(error)

    def _end_with(self, error: PenstockError) -> None:
        body = error_body(error)
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
        if error.retry_after is not None:
            head += b"retry-after: %d\r\n" % error.retry_after
        head += b"x-request-id: %s\r\n" % REQUEST_ID.get().encode("ascii")
        head += b"content-length: %d\r\n\r\n"
        self.transport.write(head % (error.http_status, _REASONS[error.http_status], len(body)) + body)
        self._close()

    def _close(self) -> None:
        """Close the connection once its client has read what waits for it, which it has to."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._stall.begin(self.transport)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)
