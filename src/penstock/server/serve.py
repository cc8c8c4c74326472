"""Running the application: the listening socket, the event loop, and an orderly end."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import Any, TypeVar, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.core.errors import AddressInUse, ConfigurationError
from penstock.server.errors import HeadersTooLarge, error_body
from penstock.server.limits import STALL_SECONDS
from penstock.server.stall import StallWatch

logger = logging.getLogger("penstock.server")

BACKLOG = 2048
GRACE_SECONDS = 30
KEEP_ALIVE_SECONDS = 30
# More connections, or requests, at a time are answered by 503. Each takes some memory, and a file descriptor.
MAX_CONNECTIONS = 4096
MAX_HEADER_BYTES = 64 * 1024
# What the kernel keeps of an answer that is not read, which would be megabytes; it takes twice as much. Less of it also
# shows earlier whether a slow client reads at all.
SEND_BUFFER_BYTES = 128 * 1024
Result = TypeVar("Result")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 takes a free one.

    Raises AddressInUse where another process has the port, ConfigurationError where the address cannot be used.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"{port} is not a port; use one from 1 to 65535, or 0 for any free one.")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(
            f"The host {host!r} cannot be resolved ({error}); use an address of this machine."
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Lets a restarted server take the port while old connections time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(address)
        # Another process may have bound it too, without listening yet; whoever listens first has it.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"Port {port} on {host} is in use; stop the other server or choose another --port."
            ) from error
        raise ConfigurationError(f"Cannot listen on {host}, port {port}: {error}.") from error
    return listener


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with two bounds that it lacks.

    What precedes a body: beyond it, 431 and the end. Bytes are counted as they arrive, so that the parser never
    collects more of one name or value either. And the time for which a client may take nothing of an answer.
    """

    _head_bytes = 0
    _in_body = False

    def __init__(self, *arguments: Any, stall_timeout: float = STALL_SECONDS, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._stall = StallWatch(stall_timeout)

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

    def connection_lost(self, exc: Exception | None) -> None:
        """Either side has closed the connection."""
        self._stall.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what the connection has received."""
        if not self._in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_body and self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            error = HeadersTooLarge(f"The request's headers are longer than {MAX_HEADER_BYTES} bytes; send fewer.")
            body = error_body(error)
            head = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            head += b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin the request."""
        self._in_body = True
        if not self.flow.write_paused:
            self._stall.end()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the head of the next request."""
        super().on_message_complete()
        self._in_body, self._head_bytes = False, 0


class Server(uvicorn.Server):
    """uvicorn with an end of our own: the first signal lets requests finish, the second does not; exit status 0."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access_log: bool = False,
        on_started: Callable[[], None] | None = None,
        stall_timeout: float = STALL_SECONDS,
    ) -> None:
        """`stall_timeout`: seconds for which a connection stays open whose client takes nothing of an answer."""
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                # uvicorn calls it like a class.
                http=cast(type[asyncio.Protocol], partial(BoundedProtocol, stall_timeout=stall_timeout)),
                ws="none",
                lifespan="on",
                access_log=access_log,
                log_config=None,
                log_level=logging.INFO if access_log else logging.WARNING,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and say so."""
        await super().startup(sockets=sockets)
        if self.started and self._on_started is not None:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what nobody waits for at once, and then let requests finish."""
        await self.end_background()
        await super().shutdown(sockets=sockets)

    async def end_background(self) -> None:
        """End the application's own work, if it was begun; once is enough."""
        if self.started:
            await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving. uvicorn's own raises them again afterwards, which would end in failure."""
        if threading.current_thread() is not threading.main_thread():
            # Only the main thread can handle signals.
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        """Finish what runs; at the second signal, stop at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        running = len(self.server_state.tasks)
        if running and not self.force_exit:
            logger.warning(
                "Stopping: %d running requests may finish, for at most %d s; a second signal ends them.",
                running,
                GRACE_SECONDS,
            )


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    access_log: bool = False,
    on_started: Callable[[], None] | None = None,
    stall_timeout: float = STALL_SECONDS,
) -> None:
    """Serve on a socket made by `bind` until a signal ends it; `on_started` is called when connections are accepted."""
    with contextlib.closing(listener):
        server = Server(app, access_log=access_log, on_started=on_started, stall_timeout=stall_timeout)
        try:
            await server.serve(sockets=[listener])
        finally:
            # Whoever is cancelled does not get to its orderly end.
            await server.end_background()


def run_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on the event loop that suits a server, uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
