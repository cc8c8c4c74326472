"""Connections that are taken while a server stops to take more."""

import asyncio
import contextlib
import socket
from typing import cast

import uvloop

from penstock.http.accept import Acceptor
from support.waiting import PATIENCE


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own have no such base.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def taken(listener: socket.socket) -> tuple[Acceptor, socket.socket]:
    """A connection that was taken a moment ago, and has no protocol yet."""
    acceptor = Acceptor(listener, Echo)
    client = socket.create_connection(listener.getsockname())
    client.settimeout(PATIENCE)
    while not acceptor.beginning:
        acceptor._take()
    return acceptor, client


async def said(client: socket.socket) -> bytes:
    client.sendall(b"hello")
    return await asyncio.to_thread(client.recv, 100)


def test_what_was_taken_before_it_stops_is_served() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            acceptor, client = await taken(listener)
            acceptor.stop()
            with client:
                assert await said(client) == b"hello" and not acceptor.beginning
            # The next one is left to others on the same socket.
            listener.settimeout(PATIENCE)
            with socket.create_connection(listener.getsockname()), listener.accept()[0]:
                assert not acceptor.beginning
            acceptor.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_what_has_not_begun_is_closed_with_it() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            acceptor, client = await taken(listener)
            acceptor.close()
            with client, contextlib.suppress(ConnectionError):
                assert await said(client) == b""

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
