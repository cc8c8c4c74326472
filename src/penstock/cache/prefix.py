"""The prefix index finds the published block that holds the KV of given tokens after a given prefix.

A hit compares the tokens of the whole prefix besides its key, so that a colliding hash is a miss; since sequences adopt
the nodes they hit, that ends after one step for all but the first block.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.cache.chain import PrefixChain, PrefixNode, same_prefix
from penstock.cache.misses import Miss, Misses
from penstock.core.kv_events import KVEvent, Removed, Stored


@dataclass(frozen=True, slots=True)
class _Entry:
    block: int
    node: PrefixNode


class PrefixIndex:
    """Published blocks of all groups, and the keys whose computation is under way.

    Args:
        events: whether it is noted what changes in the first group.
    """

    def __init__(self, num_groups: int, *, events: bool = False) -> None:
        self._events: list[KVEvent] | None = [] if events else None
        self._entries: list[dict[bytes, _Entry]] = [{} for _ in range(num_groups)]
        self._published: dict[int, tuple[int, bytes]] = {}
        self._pending: dict[bytes, int] = {}
        self._announced: dict[int, list[bytes]] = {}
        self._misses = Misses()
        # Told of each slot that is published: its group, its chain and depth, and its first block.
        self.on_publish: Callable[[int, PrefixChain, int, int], None] | None = None

    def lookup(self, group: int, chain: PrefixChain, index: int) -> int | None:
        """The block that holds the KV of `chain`'s block `index` in `group`; None if it is not published."""
        entry = self._entries[group].get(chain.key(index))
        if entry is None or not self._adopt(chain, index, entry):
            return None
        return entry.block

    def _adopt(self, chain: PrefixChain, index: int, entry: _Entry) -> bool:
        """Whether `entry` is of the chain's own prefix; the chain then takes its node."""
        own = chain.node(index)
        # The chain's block before it may have adopted a node since this one was made.
        if own is not entry.node and not (
            own.tokens == entry.node.tokens and same_prefix(chain.nodes[index], entry.node.parent)
        ):
            return False
        chain.adopt(index, entry.node)
        return True

    def publish(self, group: int, chain: PrefixChain, index: int, block: int) -> None:
        """Offer `block` under its key; the first block published under a key stays."""
        key = chain.key(index)
        entry = self._entries[group].get(key)
        if entry is not None:
            self._adopt(chain, index, entry)
        elif block not in self._published:
            self._entries[group][key] = _Entry(block, chain.node(index))
            self._published[block] = (group, key)
            if self.on_publish is not None:
                self.on_publish(group, chain, index, block)
            if group == 0:
                self._misses.published(chain.node(index))
                if self._events is not None:
                    self._events.append(_stored(chain.node(index)))

    def withdraw(self, block: int, now: float = 0.0) -> None:
        """Forget `block`, whose content is about to be lost."""
        group, key = self._published.pop(block)
        entry = self._entries[group].pop(key)
        if group == 0:
            self._misses.withdrawn(entry.node, now)
            if self._events is not None:
                self._events.append(Removed(key))

    def take_events(self) -> Sequence[KVEvent]:
        """What has changed since this was asked before."""
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    def explain(self, chain: PrefixChain, depth: int, now: float) -> Miss:
        """Why block `depth` of a chain cannot be hit although those before it can."""
        return self._misses.explain(chain, depth, now)

    def block_of(self, group: int, key: bytes) -> int | None:
        """The block that is published under a key; None where none is."""
        entry = self._entries[group].get(key)
        return None if entry is None else entry.block

    def is_published(self, block: int) -> bool:
        """Whether the content of `block` may be hit."""
        return block in self._published

    def has_none_of(self, blocks: Iterable[int]) -> bool:
        """Whether the content of none of the blocks may be hit."""
        return self._published.keys().isdisjoint(blocks)

    def announce(self, key: bytes, owner: int) -> None:
        """Note that sequence `owner` computes the block of `key` in an outstanding plan."""
        if self._pending.setdefault(key, owner) == owner:
            self._announced.setdefault(owner, []).append(key)

    def is_pending(self, key: bytes) -> bool:
        """Whether the block of `key` is being computed."""
        return key in self._pending

    def settle(self, owner: int) -> None:
        """Drop all announcements of `owner`: its plan has committed, or it has gone."""
        for key in self._announced.pop(owner, ()):
            self._pending.pop(key, None)

    def __len__(self) -> int:
        return len(self._published)


def _stored(node: PrefixNode) -> Stored:
    parent = node.parent
    if parent is None or parent.parent is None:
        return Stored(node.key, None, node.tokens, b"" if parent is None else parent.tokens)
    return Stored(node.key, parent.key, node.tokens)
