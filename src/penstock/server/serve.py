"""Running the application: the listening socket, the event loop, and an orderly end."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import Any, TypeVar, cast

import uvicorn
import uvloop
from starlette.types import ASGIApp

from penstock.core.errors import AddressInUse, ConfigurationError
from penstock.http.accept import Acceptor
from penstock.http.connections import MAX_CONNECTIONS, Connections
from penstock.http.drain import Deadline, Drain
from penstock.http.edge import EdgeOptions, at_the_edge
from penstock.http.protocol import BoundedProtocol
from penstock.http.stall import STALL_SECONDS
from penstock.server.dialects import DIALECTS
from penstock.server.paths import LAST_PATHS, WATCHED_PATHS

logger = logging.getLogger("penstock.server")

BACKLOG = 2048
# Requests that run may finish after the first signal.
DRAIN_SECONDS = 30.0
# Connections may be closed after that.
CLOSE_SECONDS = 5
# What the kernel keeps of an answer that is not read, which would be megabytes; it takes twice as much. Less of it also
# shows earlier whether a slow client reads at all.
SEND_BUFFER_BYTES = 128 * 1024
# For which idle connections stay open, whose clients may be about to send a request; between two looks at them.
_HAND_OVER_GRACE_SECONDS = 2.0
_HAND_OVER_LOOK_SECONDS = 0.05
# Of the event loop, behind which it has looked at every socket once.
_TURNS_TO_READ = 2
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
        # Another process may have bound it too, without listening yet; the first process that listens has it.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"Port {port} on {host} is in use; stop the other server or choose another --port."
            ) from error
        raise ConfigurationError(f"Cannot listen on {host}, port {port}: {error}.") from error
    return listener


def inherited(descriptor: int) -> socket.socket:
    """A socket that listens already, from the process that started this one: a supervisor of a fleet, or systemd.

    It goes on listening while one process takes the place of another, and no client finds it closed. Raises
    ConfigurationError where the descriptor is none.
    """
    try:
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigurationError(f"--listen-fd {descriptor} is no socket ({error.strerror}).") from error
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or not listener.getsockopt(
        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    ):
        listener.detach()
        raise ConfigurationError(f"--listen-fd {descriptor} is no TCP socket that listens.")
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return listener


class Server(uvicorn.Server):
    """uvicorn with an end of our own: the first signal lets requests finish, the second does not; exit status 0."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access_log: bool = False,
        on_started: Callable[[], None] | None = None,
        drain_seconds: float = DRAIN_SECONDS,
        stall_timeout: float = STALL_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
        tls: ssl.SSLContext | None = None,
        edge: EdgeOptions | None = None,
        hands_over: bool = False,
        taken: Callable[[], Awaitable[float]] | None = None,
    ) -> None:
        """Serve `app`.

        Args:
            stall_timeout: seconds for which a connection stays open whose client takes nothing of an answer.
            max_connections: at a time.
            tls: what connections are encrypted with, None where they are not.
            edge: how it speaks with those in front of it.
            hands_over: another process listens on the same socket, and takes its place at the end.
            taken: waits until the machine is to be taken away; the seconds that running requests have then.
        """
        self._tls = tls
        edge = edge or EdgeOptions()
        self._drain = Drain(app, DIALECTS, LAST_PATHS)
        self._hands_over = hands_over
        self._connections = Connections(max_connections, WATCHED_PATHS)
        protocol = partial(BoundedProtocol, connections=self._connections, stall_timeout=stall_timeout)
        super().__init__(
            uvicorn.Config(
                at_the_edge(self._drain, edge, DIALECTS),
                loop="none",
                # uvicorn calls it like a class.
                http=cast(type[asyncio.Protocol], protocol),
                ws="none",
                lifespan="on",
                access_log=access_log,
                log_config=None,
                log_level=logging.INFO if access_log else logging.WARNING,
                server_header=False,
                proxy_headers=False,
                # uvicorn only passes it on to the event loop, which takes fractions.
                timeout_keep_alive=cast(int, edge.keep_alive_timeout),
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )
        self._on_started = on_started
        self._drain_seconds = drain_seconds
        # Set where the end has begun; a signal and a notice may each bring it nearer.
        self._deadline = Deadline()
        self._asked_to_end = self._signalled = False
        self._taken = taken
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and say so."""
        await super().startup(sockets=[])
        if self.started:
            self._acceptors = [Acceptor(each, self._make_protocol, self._tls) for each in sockets or ()]
        if self.started and self._taken is not None:
            self._watching = asyncio.create_task(self._end_when_taken(self._taken))
        if self.started and self._on_started is not None:
            self._on_started()

    async def _end_when_taken(self, taken: Callable[[], Awaitable[float]]) -> None:
        """As the first signal does, with another time for what runs."""
        self._end_within(await taken())

    def _make_protocol(self) -> asyncio.Protocol:
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """What uvicorn does ten times a second; True ends the server."""
        if self._asked_to_end and self._ending is None:
            self._ending = asyncio.create_task(self._end())
        return await super().on_tick(counter)

    async def _end(self) -> None:
        """End the background work at once, let requests finish, and then close."""
        if self._hands_over:
            await self._hand_over()
        await self.end_background()
        await self._drain.finish(self._deadline)
        self.should_exit = True

    async def _hand_over(self) -> None:
        """Leave new connections to another process, and answer on those that there are, each once more at most."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._drain.hand_over()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._connected and self._deadline.left:
            await asyncio.sleep(_HAND_OVER_LOOK_SECONDS)
            # After a pause of this process, timers come before what has arrived meanwhile, which is read first.
            for _ in range(_TURNS_TO_READ):
                await asyncio.sleep(0)
            if loop.time() - began > _HAND_OVER_GRACE_SECONDS:
                # Also one whose answer has just ended, which began before: its client may ask again at once.
                self._connections.close_idle(_HAND_OVER_GRACE_SECONDS)

    @property
    def _connected(self) -> int:
        """Connections there are, with those that were taken and have not begun."""
        return len(self._connections) + sum(each.beginning for each in self._acceptors)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections, whose requests have ended, unless a second signal did not wait for that."""
        await self.end_background()
        for task in (self._ending, self._watching):
            if task is not None:
                task.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = []
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
        if self._signalled:
            self.force_exit = self.should_exit = True
        self._signalled = True
        self._end_within(self._drain_seconds)

    def _end_within(self, seconds: float) -> None:
        """Begin to end; a machine that is taken away tells so and signals its processes, in either order."""
        nearer = self._deadline.within(seconds)
        self._asked_to_end = True
        if nearer and self._drain.requests:
            logger.warning(
                "Stopping: %d running requests may finish, for at most %g s; a second signal ends them.",
                self._drain.requests,
                seconds,
            )


class _SideServer(uvicorn.Server):
    """A server beside the main one, which handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def beside(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serve another application on a socket while the block runs."""
    config = uvicorn.Config(
        app,
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = _SideServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    access_log: bool = False,
    on_started: Callable[[], None] | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    stall_timeout: float = STALL_SECONDS,
    max_connections: int = MAX_CONNECTIONS,
    tls: ssl.SSLContext | None = None,
    edge: EdgeOptions | None = None,
    hands_over: bool = False,
    taken: Callable[[], Awaitable[float]] | None = None,
) -> bool:
    """Serve on a socket made by `bind` until a signal ends it; whether that was in order, and not by a second one.

    `on_started` is called when connections are accepted. For the others, see `Server`.
    """
    with contextlib.closing(listener):
        server = Server(
            app,
            access_log=access_log,
            on_started=on_started,
            drain_seconds=drain_seconds,
            stall_timeout=stall_timeout,
            max_connections=max_connections,
            tls=tls,
            edge=edge,
            hands_over=hands_over,
            taken=taken,
        )
        try:
            await server.serve(sockets=[listener])
        finally:
            # A server that is cancelled does not get to its orderly end.
            await server.end_background()
        return not server.force_exit


def run_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on the event loop that suits a server, uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
