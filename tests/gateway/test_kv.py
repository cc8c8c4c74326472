"""What replicas tell of their caches arrives over real sockets, whatever is missed of it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from penstock.cache.chain import token_bytes
from penstock.core.errors import ConfigurationError
from penstock.core.kv_events import Cleared, KVEvent, Removed, Stored
from penstock.core.kv_places import KVPlaces
from penstock.core.kv_wire import END
from penstock.gateway.kv import KVReader, make_context
from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings
from penstock.routing.keys import keys_of, token_root
from penstock.routing.stream import EventStream, Exactness
from penstock.server.kv_publisher import KVPublisher
from support.http_server import free_port
from support.waiting import PATIENCE, reached

BLOCK = 4


class Cache:
    """Prompts of one block each, and who is told what changes."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.has: set[int] = set()
        self.batches = 0
        self.told: Callable[[Sequence[KVEvent]], object] = lambda _events: None

    def watch(self, watcher: Callable[[Sequence[KVEvent]], None]) -> None:
        self.told = watcher

    def step(self) -> None:
        events: list[KVEvent] = []
        for number in self.draw.sample(range(40), self.draw.randint(1, 6)):
            if number in self.has:
                self.has.remove(number)
                events.append(Removed(number.to_bytes(8)))
            else:
                self.has.add(number)
                events.append(Stored(number.to_bytes(8), None, token_bytes([number] * BLOCK)))
        self.tell(events)

    def tell(self, events: Sequence[KVEvent]) -> None:
        self.batches += 1
        self.told(events)

    def clear(self) -> None:
        self.has.clear()
        self.tell([Cleared()])


class Reader:
    """What a gateway knows of it."""

    def __init__(self, places: KVPlaces) -> None:
        self.holdings = Holdings(1000)
        self.stream = EventStream(Feed(self.holdings, 0))
        self.places = places
        self.reader: KVReader | None = None

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator["Reader"]:
        context = make_context()
        at = "tcp://127.0.0.1"
        self.reader = KVReader(context, self.stream, f"{at}:{self.places.events}", f"{at}:{self.places.replay}")
        task = asyncio.create_task(self.reader.read())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            context.term()

    @property
    def known(self) -> set[int]:
        return {n for n in range(40) if self.holdings.hits(keys_of([n] * BLOCK, BLOCK, token_root()).keys)}

    async def knows(self, cache: Cache) -> None:
        """Until it knows exactly what the cache has, which says how many batches there were."""
        assert self.reader is not None
        self.reader.told(cache.batches)
        await reached(lambda: self.known == cache.has and self.stream.exactness == Exactness.EXACT)


@contextlib.asynccontextmanager
async def publishing(publisher: KVPublisher, cache: Cache) -> AsyncIterator[None]:
    """At a free port and the next, which another publisher can have later."""
    while True:
        try:
            async with publisher.publishing(cache.watch, "127.0.0.1", free_port()):
                yield
                return
        except ConfigurationError:
            # The next port was not free.
            continue


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_who_comes_late_or_misses_a_restart_knows_all() -> None:
    async def test() -> None:
        cache, publisher = Cache(random.Random(1)), KVPublisher(BLOCK)
        async with publishing(publisher, cache):
            places = publisher.places
            assert places is not None
            async with Reader(places).reading() as early:
                # Nothing has happened yet, which is known, too.
                await early.knows(cache)
                for _ in range(50):
                    cache.step()
                async with Reader(places).reading() as late:
                    await early.knows(cache)
                    await late.knows(cache)
                    cache.clear()
                    cache.step()
                    await early.knows(cache)
                    await late.knows(cache)
        # Another process takes the ports; what it had told before nobody heard.
        cache, again = Cache(random.Random(2)), KVPublisher(BLOCK)
        async with Reader(places).reading() as reader, again.publishing(cache.watch, "127.0.0.1", places.events):
            for _ in range(5):
                cache.step()
            await reader.knows(cache)

    run(test)


def test_a_restart_is_seen_by_who_has_known_the_one_before() -> None:
    async def test() -> None:
        cache, publisher = Cache(random.Random(3)), KVPublisher(BLOCK)
        async with contextlib.AsyncExitStack() as stack:
            async with publishing(publisher, cache):
                assert publisher.places is not None
                reader = await stack.enter_async_context(Reader(publisher.places).reading())
                for _ in range(20):
                    cache.step()
                await reader.knows(cache)
            cache = Cache(random.Random(4))
            async with KVPublisher(BLOCK).publishing(cache.watch, "127.0.0.1", reader.places.events):
                # It is seen by the first event.
                async with asyncio.timeout(PATIENCE):
                    while reader.stream.restarts == 0:
                        cache.step()
                        await asyncio.sleep(0.05)
                await reader.knows(cache)

    run(test)


class Foreign:
    """A server that publishes as vLLM does: maps with names, the last batches kept, and no telling of what was before.

    Args:
        lost: part of the batches that do not arrive.
    """

    def __init__(self, kept: int, lost: float, draw: random.Random) -> None:
        self.kept, self.lost, self.draw = kept, lost, draw
        self.sent: list[tuple[int, bytes]] = []
        self.asked: list[int] = []

    @contextlib.asynccontextmanager
    async def publishing(self, cache: Cache) -> AsyncIterator[KVPlaces]:
        with zmq.asyncio.Context() as context:
            told, again = zmq.Context.shadow(context).socket(zmq.PUB), context.socket(zmq.ROUTER)
            places = KVPlaces(*(each.bind_to_random_port("tcp://127.0.0.1") for each in (told, again)), BLOCK)

            def tell(events: Sequence[KVEvent]) -> None:
                number = len(self.sent)
                payload = msgspec.msgpack.encode({"ts": float(number), "events": [named(each) for each in events]})
                self.sent.append((number, payload))
                if self.draw.random() >= self.lost:
                    told.send_multipart((b"", number.to_bytes(8), payload))

            cache.told = tell
            answering = asyncio.create_task(self._answer(again))
            yield places
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            told.close(0)
            again.close(0)

    async def _answer(self, again: Any) -> None:
        while True:
            sender, _, number = await again.recv_multipart()
            self.asked.append(int.from_bytes(number))
            for each, payload in self.sent[-self.kept :]:
                if each >= self.asked[-1]:
                    await again.send_multipart((sender, b"", each.to_bytes(8), payload))
            await again.send_multipart((sender, b"", END, b""))


def named(event: KVEvent) -> dict[str, Any]:
    match event:
        case Stored(key, _, tokens):
            ids = memoryview(tokens).cast("I").tolist()
            fields = {"block_hashes": [int.from_bytes(key)], "parent_block_hash": None, "token_ids": ids}
            return {"type": "BlockStored", **fields, "block_size": BLOCK, "lora_id": None, "medium": "GPU"}
        case Removed(key):
            return {"type": "BlockRemoved", "block_hashes": [int.from_bytes(key)], "medium": "GPU"}
    return {"type": "AllBlocksCleared"}


def test_lost_batches_of_a_server_of_another_kind_are_asked_for() -> None:
    async def test() -> None:
        draw = random.Random(5)
        cache, foreign = Cache(draw), Foreign(1000, 0.1, draw)
        async with foreign.publishing(cache) as places, Reader(places).reading() as reader:
            for number in range(300):
                cache.step()
                if number % 20 == 0:
                    await asyncio.sleep(0.01)
            await reader.knows(cache)
            assert len(foreign.asked) > 1 and not reader.stream.lost

    run(test)


def test_what_it_has_no_longer_is_not_asked_for_again_and_again() -> None:
    async def test() -> None:
        draw = random.Random(6)
        cache, foreign = Cache(draw), Foreign(10, 0.0, draw)
        async with foreign.publishing(cache) as places:
            for _ in range(100):
                cache.step()
            async with Reader(places).reading() as reader:
                await reached(lambda: reader.stream.lost > 0)
                # From when on what is told reaches it: what was told before would have to be asked for.
                before = reader.stream.expected
                while reader.stream.expected == before:
                    cache.step()
                    await asyncio.sleep(0.01)
                await reached(lambda: reader.stream.expected == len(foreign.sent))
                asked = len(foreign.asked)
                for _ in range(50):
                    cache.step()
                    await asyncio.sleep(0.01)
                await reached(lambda: reader.known == cache.has or reader.known < cache.has)
                # What is known is there; there may be more.
                assert reader.stream.exactness == Exactness.DEGRADED and len(foreign.asked) == asked

    run(test)


def test_what_is_no_batch_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        draw = random.Random(7)
        cache, foreign = Cache(draw), Foreign(1000, 0.0, draw)
        async with foreign.publishing(cache) as places, Reader(places).reading() as reader:
            cache.step()
            await reader.knows(cache)
            foreign.sent.append((len(foreign.sent), b"no batch"))
            cache.step()
            await reached(lambda: "is not told again" in caplog.text)
            cache.clear()
            await reader.knows(cache)

    run(test)
