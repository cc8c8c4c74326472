"""A real server on a free loopback port, in a thread of the test's process."""

import asyncio
import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import uvicorn.server
import uvloop
from starlette.types import ASGIApp

from penstock.http.connections import MAX_CONNECTIONS
from penstock.http.edge import EdgeOptions
from penstock.http.stall import STALL_SECONDS
from penstock.server.serve import Server, bind
from support.waiting import PATIENCE

_PORTS = (20000, 32000)


class _Hurried:
    """asyncio for uvicorn, which looks ten times a second whether its servers are to end, and whether they have.

    In a test's process it looks a hundred times: else each test with a server waits a fifth of a second for its end.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = _Hurried()  # type: ignore[assignment]


@contextlib.contextmanager
def running(
    app: ASGIApp,
    stall_timeout: float = STALL_SECONDS,
    max_connections: int = MAX_CONNECTIONS,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
    edge: EdgeOptions | None = None,
    beside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
) -> Iterator[str]:
    """Serve `app` over HTTP, on any free port where none is given, within what `beside` makes; yields the base."""
    listener = bind("127.0.0.1", port)
    started = Future[None]()
    server = Server(
        app,
        on_started=lambda: started.set_result(None),
        stall_timeout=stall_timeout,
        max_connections=max_connections,
        tls=tls,
        edge=edge,
    )

    async def serve() -> None:
        async with beside():
            await server.serve(sockets=[listener])

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
            if not started.done():
                started.set_exception(RuntimeError("The server ended before it served."))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    try:
        started.result(PATIENCE)
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


def free_port() -> int:
    """A port that nothing listens on, and that no other test gets while this process runs.

    It is below those that the system gives to connections, which could take it before a server does. A UDP socket on
    the same number, which is open until the process ends, keeps it from other processes' tests.
    """
    while True:
        mark = socket.socket(type=socket.SOCK_DGRAM)
        with contextlib.closing(socket.socket()) as probe:
            try:
                mark.bind(("127.0.0.1", random.randrange(*_PORTS)))
                probe.bind(mark.getsockname())
            except OSError:
                mark.close()
                continue
        port = int(mark.getsockname()[1])
        mark.detach()
        return port
