"""When a request has arrived: while the server was busy with something else."""

import asyncio
import socket
import sys
import time
from collections.abc import Iterator

import pytest
import uvloop

from penstock.http.arrival import arrival


class Receiver(asyncio.Protocol):
    """Notes when what it receives arrived, and between which moments it was told."""

    def __init__(self) -> None:
        self.times: asyncio.Future[tuple[float, float, float]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        asked = time.monotonic()
        told = arrival(self.transport)  # type: ignore[arg-type]
        self.times.set_result((told, asked, time.monotonic()))


@pytest.fixture
def tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            server, _ = listener.accept()
            with server:
                yield client, server


async def received(
    client: socket.socket, server: socket.socket, busy: float
) -> tuple[tuple[float, float], float, tuple[float, float]]:
    """Between which moments something was sent, when it arrived, and between which moments the loop was told.

    The loop is busy for so long in between.
    """
    server.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, receiver = await loop.create_connection(Receiver, sock=server.dup())
    before = time.monotonic()
    client.sendall(b"x")
    sent = before, time.monotonic()
    time.sleep(busy)
    arrived, *told = await receiver.times
    transport.close()
    return sent, arrived, (told[0], told[1])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long the kernel has had it")
def test_what_waits_for_a_busy_loop_has_arrived_before(tcp: tuple[socket.socket, socket.socket]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        (before, sent), arrived, (asked, told) = runner.run(received(*tcp, busy=0.2))
    assert asked - sent >= 0.2
    # A kernel counts in steps of at most 10 ms, and rounds either way; and who asks may be interrupted meanwhile.
    assert before - (told - asked) - 0.02 <= arrived <= sent + 0.02


def test_where_nobody_says_it_has_arrived_now() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        (_, sent), arrived, (asked, told) = runner.run(received(ours, theirs, busy=0.05))
    assert sent + 0.05 <= asked <= arrived <= told
