"""Tells others what changes in this replica's prefix cache, over ZeroMQ, as `core/kv_wire.py` has it.

Publishing never waits: what a slow reader has no room for is dropped, and it asks for it again.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import ConfigurationError
from penstock.core.kv_events import KVEvent
from penstock.core.kv_places import KVPlaces
from penstock.core.kv_wire import END, TOPIC, decode_number, encode_number, tcp
from penstock.server.kv_journal import KEPT, KVJournal

# Batches that wait for a reader before it misses some.
_MOST_WAITING = 10_000
# Has a function told of what changes in the cache from now on.
Watch = Callable[[Callable[[Sequence[KVEvent]], None]], None]
_MISSING = "--kv-events needs pyzmq, which is not installed: pip install 'penstock[kv-events]'."


class KVPublisher:
    """Two sockets of one replica: on one it tells, on the other it tells again."""

    def __init__(self, block_size: int) -> None:
        self._journal = KVJournal(block_size)
        self._topic = TOPIC + uuid.uuid4().hex.encode()
        self._block_size = block_size
        self._told: Any = None
        self._places: KVPlaces | None = None

    @property
    def places(self) -> KVPlaces | None:
        """Where they listen, once they do."""
        return None if self._places is None else replace(self._places, told=self._journal.next)

    @contextlib.asynccontextmanager
    async def publishing(self, watch: Watch, host: str, port: int) -> AsyncIterator[None]:
        """Listen at a port and the one behind it (0: at any free ones) while the block runs.

        Raises ConfigurationError where a port cannot be had, or pyzmq is not there.
        """
        try:
            import zmq
            import zmq.asyncio
        except ImportError as error:
            raise ConfigurationError(_MISSING) from error
        with zmq.asyncio.Context() as context:
            told: Any = zmq.Context.shadow(context).socket(zmq.PUB)
            again = context.socket(zmq.ROUTER)
            for each in (told, again):
                each.setsockopt(zmq.LINGER, 0)
                each.setsockopt(zmq.IPV6, ":" in host)
            told.setsockopt(zmq.SNDHWM, _MOST_WAITING)
            # Of all that is kept nothing is dropped.
            again.setsockopt(zmq.SNDHWM, 2 * KEPT)
            try:
                self._places = KVPlaces(
                    _bound(told, host, port), _bound(again, host, port and port + 1), self._block_size
                )
                self._told = told
                watch(self._changed)
                answering = asyncio.create_task(self._tell_again(again))
                try:
                    yield
                finally:
                    answering.cancel()
                    await asyncio.gather(answering, return_exceptions=True)
            finally:
                self._told = self._places = None
                told.close()
                again.close()

    def _changed(self, events: Sequence[KVEvent]) -> None:
        number, batch = self._journal.add(time.time(), events)
        if self._told is not None:
            # A PUB socket drops what it cannot send.
            self._told.send_multipart((self._topic, encode_number(number), batch))

    async def _tell_again(self, again: Any) -> None:
        while True:
            sender, *rest = await again.recv_multipart()
            try:
                first = decode_number(rest[-1])
            except (ValueError, IndexError):
                # It speaks of something else; there is no form for an answer that says so.
                continue
            # What tells all takes a while, in which nothing else is to wait.
            for number, batch in await asyncio.to_thread(self._journal.making(first)):
                await again.send_multipart((sender, b"", encode_number(number), batch))
            await again.send_multipart((sender, b"", END, b""))


def _bound(socket: Any, host: str, port: int) -> int:
    """The port that a socket was bound to."""
    import zmq

    try:
        socket.bind(tcp(host, port or "*"))
    except zmq.ZMQError as error:
        raise ConfigurationError(f"--kv-events cannot listen on {tcp(host, port)}: {error}.") from error
    return int(socket.getsockopt(zmq.LAST_ENDPOINT).rpartition(b":")[2])
