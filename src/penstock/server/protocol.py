"""HTTP/1.1 as uvicorn speaks it, with bounds on what a client can hold without finishing its request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.core.errors import PenstockError, RequestError
from penstock.server.errors import HeadersTooLarge, RequestTooSlow, error_body
from penstock.server.limits import STALL_SECONDS
from penstock.server.stall import StallWatch

MAX_HEADER_BYTES = 64 * 1024
# A request's head is complete within so many seconds from its first byte, or from when the connection was made.
HEAD_SECONDS = 15.0
# Of a body, at least so much arrives in each of these spans, while it is being read.
BODY_SPAN_SECONDS = 30.0
LEAST_BODY_BYTES = 16 * 1024
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Bytes of a head are counted as they arrive, so that the parser never collects more of one name or value either.

    Args:
        stall_timeout: seconds for which a client may take nothing of an answer.
    """

    _head_bytes = 0
    _in_body = False
    _body_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, stall_timeout: float = STALL_SECONDS, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._stall = StallWatch(stall_timeout)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first request."""
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Either side has closed the connection."""
        self._stop_waiting()
        self._stall.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what the connection has received."""
        if self._in_body:
            self._body_bytes += len(data)
        else:
            self._head_bytes += len(data)
            if self._timer is None:
                self._wait(HEAD_SECONDS)
        super().data_received(data)
        if not self._in_body and self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(
                HeadersTooLarge(f"The request's headers are longer than {MAX_HEADER_BYTES} bytes; send fewer.")
            )

    def on_headers_complete(self) -> None:
        """Begin the request."""
        self._in_body, self._body_bytes = True, 0
        if not self.flow.write_paused:
            self._stall.end()
        self._wait(BODY_SPAN_SECONDS)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the head of the next request."""
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
        # Of a connection that is being closed, all has to be read.
        if not self.transport.is_closing():
            self._stall.end()

    def on_response_complete(self) -> None:
        """An answer was written, of which not all may have been read."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._stall.begin(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not understand."""
        self._refuse(RequestError("The request is not valid HTTP/1.1."))

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._look)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """So long has passed without the end of what is awaited."""
        self._timer = None
        if not self._in_body:
            self._refuse(
                RequestTooSlow(f"The request's head did not arrive within {HEAD_SECONDS:g} s; send it at once.")
            )
        elif self._body_bytes >= LEAST_BODY_BYTES or self.flow.read_paused:
            # What nobody has read yet is not the client's fault.
            self._body_bytes = 0
            self._wait(BODY_SPAN_SECONDS)
        else:
            # Whoever reads the body learns that it does not end.
            self.transport.close()

    def _refuse(self, error: PenstockError) -> None:
        """Say why, unless an answer to an earlier request is under way, and end the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = error_body(error)
            head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
            head += b"connection: close\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(head % (error.http_status, _REASONS[error.http_status], len(body)) + body)
        self.transport.close()
