"""What a gateway takes replicas to have in their caches, and by which names."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from penstock.access.tenants import Tenant, standing_of
from penstock.cache.chain import token_bytes
from penstock.core.kv_events import Stored
from penstock.core.kv_places import KVPlaces
from penstock.core.request import Standing
from penstock.gateway.asked import text_keys, text_root
from penstock.gateway.caches import Caches, Prompt
from penstock.gateway.pool import Pool, address_of
from penstock.gateway.replicas import Replica, Replicas
from penstock.routing.holdings import Holdings
from penstock.routing.stream import Exactness
from penstock.routing.told import ReplicaState
from penstock.server.kv_publisher import KVPublisher
from support.waiting import reached

TOKENS = list(range(100, 140))
TEXT = text_keys(b"x" * 1000, text_root("m"))


class Known:
    """Two replicas; the first tells its events."""

    def __init__(self) -> None:
        self.holdings = Holdings(1000)
        self.caches, replicas = Caches(self.holdings), Replicas()
        self.replicas = [replicas.add(Pool(address_of(f"http://127.0.0.1:{port}"))) for port in (1, 2)]
        for each in self.replicas:
            self.caches.add(each)

    def holds(self, key: bytes, place: int) -> bool:
        """Whether a replica has told of a block."""
        return key in self.caches._feeds[place]._own

    def hits(self, prompt: Prompt | None) -> dict[int, int]:
        """Blocks of a prompt that each has."""
        found: dict[int, int] = {}
        for keys in self.caches.keys(TEXT, prompt).all:
            hits = self.holdings.hits(keys.keys)
            found |= {place: hits[place] for place in hits if keys.places is None or place in keys.places}
        return found


def state(places: KVPlaces | None, instance: str = "one", reads: str = "same") -> ReplicaState:
    return ReplicaState(at=0.0, instance=instance, models=("m",), reads=reads, kv=places)


@contextlib.asynccontextmanager
async def known() -> AsyncIterator[tuple[Known, KVPublisher]]:
    publisher, found = KVPublisher(16), Known()
    async with publisher.publishing(lambda _watcher: None, "127.0.0.1", 0):
        try:
            yield found, publisher
        finally:
            await found.caches.close()


async def follows(found: Known, places: KVPlaces | None, replica: Replica) -> None:
    found.caches.told(replica, state(places))
    await reached(lambda: found.caches.exactness(replica.place) == Exactness.EXACT)


def test_what_was_sent_counts_until_it_is_over_and_what_is_told_for_as_long_as_it_is_there() -> None:
    async def test() -> None:
        async with known() as (found, publisher):
            first, second = found.replicas
            await follows(found, publisher.places, first)
            assert found.caches.exactness(second.place) == Exactness.APPROXIMATE
            prompt = Prompt("same", TOKENS, "")
            keys = found.caches.keys(TEXT, prompt)
            expected, again = found.caches.sent(first.place, keys), found.caches.sent(first.place, keys)
            assert expected is not None and again is not None and found.hits(prompt) == {0: 2}
            expected.settle()
            assert found.hits(prompt) == {0: 2}
            again.settle()
            # It was cancelled, say: nothing of it came into the cache.
            assert found.hits(prompt) == {}
            expected = found.caches.sent(first.place, keys)
            publisher._changed([Stored(b"a", None, token_bytes(TOKENS[:16]))])
            await reached(lambda: found.holds(b"a", first.place))
            assert expected is not None
            expected.settle()
            assert found.hits(prompt) == {0: 1}
            # The other one tells nothing: what it was sent counts by its text.
            assert found.caches.sent(second.place, keys) is None and found.hits(prompt) == {0: 1, 1: len(TEXT.keys)}

    asyncio.run(test())


def test_a_restart_forgets_but_not_what_is_on_its_way() -> None:
    async def test() -> None:
        async with known() as (found, publisher):
            first, prompt = found.replicas[0], Prompt("same", TOKENS, "")
            publisher._changed([Stored(b"a", None, token_bytes(list(range(16))))])
            await follows(found, publisher.places, first)
            expected = found.caches.sent(first.place, found.caches.keys(TEXT, prompt))
            places = publisher.places
            found.caches.told(first, state(places, "two"))
            assert not found.holds(b"a", first.place) and found.hits(prompt) == {0: 2}
            assert expected is not None
            expected.settle()
            assert found.hits(prompt) == {}
            # It tells no events any more, or reads prompts in a way that is not known here.
            found.caches.told(first, state(None))
            assert found.caches.exactness(first.place) == Exactness.APPROXIMATE
            found.caches.told(first, state(places, "three", reads="otherwise"))
            assert found.caches.keys(TEXT, prompt).named == {} and found.caches.reads(first.place) == "otherwise"

    asyncio.run(test())


def test_salts_are_those_that_the_replica_gives_a_tenant() -> None:
    async def test() -> None:
        async with known() as (found, publisher):
            places = publisher.places
            assert places is not None
            await follows(found, KVPlaces(places.events, places.replay, 16, 0, "gateways"), found.replicas[0])
            salt = standing_of(Tenant(name="gateways"), Standing(cache_salt="mine")).cache_salt
            publisher._changed([Stored(b"a", None, token_bytes(TOKENS[:16]), salt.encode())])
            await reached(lambda: found.holds(b"a", 0))
            assert found.hits(Prompt("same", TOKENS, "mine")) == {0: 1}
            assert found.hits(Prompt("same", TOKENS, "")) == found.hits(Prompt("same", TOKENS, "yours")) == {}

    asyncio.run(test())


def test_where_events_cannot_be_read_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.gateway.caches.make_context", lambda: None)

    async def test() -> None:
        found = Known()
        for each in found.replicas:
            found.caches.told(each, state(KVPlaces(1, 2, 16)))
            assert found.caches.exactness(each.place) == Exactness.APPROXIMATE
        await found.caches.close()

    asyncio.run(test())
    [record] = caplog.records
    assert "pip install 'penstock[kv-events]'" in record.getMessage()
