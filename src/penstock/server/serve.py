"""Running the application: the listening socket, the event loop, and an orderly end."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

import uvicorn
import uvloop
from starlette.types import ASGIApp

from penstock.core.errors import AddressInUse, ConfigurationError

BACKLOG = 2048
GRACE_SECONDS = 30
KEEP_ALIVE_SECONDS = 30
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


class Server(uvicorn.Server):
    """uvicorn with an end of our own: the first signal lets requests finish, the second does not; exit status 0."""

    def __init__(self, app: ASGIApp, *, access_log: bool = False, on_started: Callable[[], None] | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=access_log,
                log_config=None,
                log_level=logging.INFO if access_log else logging.WARNING,
                server_header=False,
                proxy_headers=False,
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


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    access_log: bool = False,
    on_started: Callable[[], None] | None = None,
) -> None:
    """Serve on a socket made by `bind` until a signal ends it; `on_started` is called when connections are accepted."""
    with contextlib.closing(listener):
        await Server(app, access_log=access_log, on_started=on_started).serve(sockets=[listener])


def run_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on the event loop that suits a server, uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def run_server(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    access_log: bool = False,
    on_started: Callable[[], None] | None = None,
) -> None:
    """Bind, serve until a signal ends it, and return.

    Raises AddressInUse or ConfigurationError where the address cannot be used.
    """
    run_loop(serve(app, bind(host, port), access_log=access_log, on_started=on_started))
