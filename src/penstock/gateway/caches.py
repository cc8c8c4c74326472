"""What is known of the caches of replicas: from their events where they tell them, else from what was sent to them."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.access.tenants import Tenant, standing_of
from penstock.core.kv_places import KVPlaces
from penstock.core.kv_wire import tcp
from penstock.core.request import Standing
from penstock.gateway.kv import MISSING, KVReader, make_context
from penstock.gateway.replicas import Replica
from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings, Recent
from penstock.routing.keys import NO_KEYS, Keys, keys_of, token_root
from penstock.routing.stream import EventStream, Exactness
from penstock.routing.told import ReplicaState

logger = logging.getLogger("penstock.gateway")

# Blocks of text that a replica is taken to have room for.
GUESSED_BLOCKS = 100_000


class Naming(NamedTuple):
    """How a replica names blocks.

    Attributes:
        reads: how prompts are read; readers with the same read the same tokens.
        block_size: tokens of a block.
        tenant: whose the gateway's requests are there; None: their own tenants'.
    """

    reads: str
    block_size: int
    tenant: str | None


class Prompt(NamedTuple):
    """What a request's prompt is.

    Attributes:
        reads: how it was read.
        tokens: its ids.
        salt: that its client sets it apart with.
        tenant: whose it is at the gateway.
    """

    reads: str
    tokens: Sequence[int]
    salt: str
    tenant: str = ""

    def keys(self, naming: Naming) -> Keys:
        """Of its blocks, as a replica names them."""
        tenant = self.tenant if naming.tenant is None else naming.tenant
        salt = standing_of(Tenant(name=tenant), Standing(cache_salt=self.salt)).cache_salt
        return keys_of(self.tokens, naming.block_size, token_root(self.reads, salt.encode()))


class PromptKeys(NamedTuple):
    """All names of a prompt's blocks.

    Attributes:
        text: those by its text.
        named: those by its tokens.
    """

    text: Keys = NO_KEYS
    named: dict[Naming, Keys] = {}

    @property
    def all(self) -> list[Keys]:
        """The names of each kind, one kind after the other."""
        return [self.text, *self.named.values()]


class _Followed(NamedTuple):
    """A replica that tells its events."""

    instance: str
    naming: Naming
    stream: EventStream
    reader: KVReader
    task: asyncio.Task[None]


class Caches:
    """Those of all replicas, by their places.

    Args:
        keyed: whether the gateway has keys of its own, so that it knows whose requests are.
    """

    def __init__(self, holdings: Holdings, *, keyed: bool = False) -> None:
        self._holdings, self._keyed = holdings, keyed
        self._recent: list[Recent] = []
        self._feeds: list[Feed] = []
        self._followed: dict[int, _Followed] = {}
        self._context: Any = None
        self._is_told = False

    def add(self, replica: Replica) -> None:
        """There is one more replica."""
        self._recent.append(Recent(self._holdings, replica.place, GUESSED_BLOCKS))
        self._feeds.append(Feed(self._holdings, replica.place))

    def told(self, replica: Replica, state: ReplicaState) -> None:
        """A replica says how it is: its events are followed where it tells them."""
        if state.kv is None or not state.reads:
            self._leave(replica.place)
        else:
            tenant = None if self._keyed and state.for_others else state.kv.tenant
            self.follow(replica, state.kv, Naming(state.reads, state.kv.block_size, tenant), state.instance)

    def follow(self, replica: Replica, places: KVPlaces, naming: Naming, instance: str = "") -> None:
        """Read a replica's events, where that is not done yet."""
        followed = self._followed.get(replica.place)
        if followed is not None and (followed.instance, followed.naming) == (instance, naming):
            followed.reader.told(places.told)
            return
        self._leave(replica.place)
        self._context = self._context or make_context()
        if self._context is None:
            if not self._is_told:
                self._is_told = True
                logger.warning("Replicas tell what is in their caches, which cannot be read: %s.", MISSING)
            return
        # What was guessed of it counts no longer.
        self._recent[replica.place].forget()
        feed = self._feeds[replica.place]
        feed.reads = naming.reads
        stream = EventStream(feed)
        host = replica.pool.address.host
        reader = KVReader(self._context, stream, tcp(host, places.events), tcp(host, places.replay))
        reader.told(places.told)
        task = asyncio.create_task(reader.read())
        self._followed[replica.place] = _Followed(instance, naming, stream, reader, task)

    def reads(self, place: int) -> str | None:
        """How the prompts of a replica are read that tells its events."""
        followed = self._followed.get(place)
        return None if followed is None else followed.naming.reads

    def exactness(self, place: int) -> Exactness:
        """How well the cache of a replica is known."""
        followed = self._followed.get(place)
        if followed is None:
            return Exactness.APPROXIMATE
        is_partial = self._feeds[place].is_partial or self._holdings.is_partial(place)
        return Exactness.DEGRADED if is_partial else followed.stream.exactness

    def keys(self, text: Keys, prompt: Prompt | None) -> PromptKeys:
        """The names that replicas have for a prompt's blocks."""
        if prompt is None:
            return PromptKeys(text)
        places: dict[Naming, set[int]] = {}
        for place, followed in self._followed.items():
            if followed.naming.reads == prompt.reads:
                places.setdefault(followed.naming, set()).add(place)
        return PromptKeys(
            text, {each: prompt.keys(each)._replace(places=frozenset(those)) for each, those in places.items()}
        )

    def sent(self, place: int, keys: PromptKeys) -> "Expected | None":
        """A prompt goes to a replica; what is to be settled once it is over."""
        followed = self._followed.get(place)
        if followed is None or followed.naming not in keys.named:
            self._recent[place].sent(keys.text.keys)
            return None
        expected = Expected(self._feeds[place], keys.named[followed.naming].keys)
        expected.feed.expect(expected.keys)
        return expected

    def forget(self, place: int) -> None:
        """A replica is gone, and what it had with it."""
        self._leave(place)
        self._feeds[place].forget()
        self._recent[place].forget()
        self._recent[place] = Recent(self._holdings, place, GUESSED_BLOCKS)

    async def close(self) -> None:
        """End the reading of events, and what it needs."""
        tasks = [followed.task for followed in self._followed.values()]
        for place in list(self._followed):
            self._leave(place)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.term()
            self._context = None

    def _leave(self, place: int) -> None:
        followed = self._followed.pop(place, None)
        if followed is not None:
            followed.task.cancel()
            self._feeds[place].restart()


class Expected(NamedTuple):
    """Blocks that a replica will have soon, as it was sent a prompt with them."""

    feed: Feed
    keys: Sequence[int]

    def settle(self) -> None:
        """The request is over, so that only what the replica tells counts."""
        self.feed.settle(self.keys)
