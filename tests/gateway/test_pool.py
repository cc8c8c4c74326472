"""Connections to an address."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.pool import Pool, address_of

_GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """The system takes connections for it, and nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def pool_of(server: socket.socket, seconds: float) -> Pool:
    return Pool(address_of(f"http://127.0.0.1:{server.getsockname()[1]}"), seconds)


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


def test_a_gateway_that_stood_still_blames_no_replica(server: socket.socket) -> None:
    async def test() -> None:
        pool = pool_of(server, 0.1)
        sending = asyncio.ensure_future(pool.send(_GET))
        # The connection is on its way, and there before the loop looks; so is the time that it has.
        await asyncio.sleep(0)
        time.sleep(0.6)
        await sending
        assert len(pool) == 1
        pool.close()

    run(test())


def test_one_that_takes_no_connection_is_told(server: socket.socket) -> None:
    server.listen(0)

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            # The system holds one for it, and lets others wait.
            for _ in range(2):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(server.getsockname())
            with pytest.raises(ReplicaBroken, match=r"does not take a connection within 0\.1 s"):
                await pool_of(server, 0.1).send(_GET)

    run(test())
