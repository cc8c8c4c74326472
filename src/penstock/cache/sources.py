"""Sources: what an encoder has read, whose keys and values each layer of a decoder attends to.

They depend on the whole source, since an encoder sees both directions, and so do the decoder's own. All slots of it
are taken at once, written by one step, and never again. Sequences with the same source share them.
"""

from collections.abc import Sequence

from penstock.cache.chain import PrefixChain
from penstock.cache.groups import Copy, Missing, Table, Want
from penstock.cache.held import SequenceBlocks
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex
from penstock.cache.shelves import Shelves
from penstock.core.facts import PrefixFound
from penstock.core.kv import GroupSpec, KVSpec

# Under the same whole source, a slot's key differs from that of the decoder's slot with the same tokens.
_SLOTS = b"source"


def source_chain(whole: PrefixChain, source: Sequence[int]) -> PrefixChain:
    """The keys of a source's slots under the key of the `whole` source; the last slot may be filled in part."""
    chain = whole.under(_SLOTS)
    chain.extend(list(source), -(-len(source) // chain.block_size) * chain.block_size)
    return chain


class SourceGroup:
    """Layers with entries for each token of a sequence's source, which each of its positions sees whole."""

    def __init__(self, number: int, spec: GroupSpec, pool: BlockPool, index: PrefixIndex) -> None:
        self.width = spec.width
        self._number = number
        self._pool = pool
        self._index = index

    def hit(self, chain: PrefixChain, limit: int, shelves: Shelves | None = None) -> int:
        """All: what is published of a decoder's tokens stays valid where their source has to be encoded again."""
        return limit

    def attach(self, table: Table, chain: PrefixChain, hit: int) -> list[Missing]:
        """Share the whole source, if all of it is published."""
        slots: list[int] = []
        keys = table.source
        for depth in range(0 if keys is None else len(keys)):
            assert keys is not None
            slot = self._index.lookup(self._number, keys, depth)
            if slot is None:
                return []
            slots.append(slot)
        for slot in slots:
            self._pool.share(slot)
        table.slots = slots
        return []

    def give(self, table: Table, place: int, slot: int) -> None:
        """At the place of its tokens."""
        table.slots[place] = slot

    def release_passed(self, table: Table, start: int, until: int | None) -> None:
        """Every position sees all of it."""

    def wants(self, table: Table, start: int, end: int, *, drafts: bool) -> Want:
        """All slots, before the first position is computed."""
        return Want() if table.slots or table.source is None else Want(fresh=len(table.source))

    def take(self, table: Table, start: int, end: int, want: Want, plan: int, *, drafts: bool) -> Copy | None:
        """What the plan encodes the source into."""
        if want.fresh:
            table.slots = self._pool.take(want.fresh, self.width)
        return None

    def roll_back(self, table: Table, end: int, until: int | None) -> int:
        """A source does not depend on what comes of it."""
        return end

    def publish(self, table: Table, chain: PrefixChain | None, first: int, full: int, until: int | None) -> None:
        """It is offered once, when it is encoded (`KVCache.publish`)."""

    def needed(self, table: Table, tokens: int) -> list[tuple[int, int]] | None:
        """All of it; None before it is encoded."""
        return None if table.source is not None and not table.slots else list(enumerate(table.slots))

    def fork(self, table: Table, tokens: int) -> Table | None:
        """It shares all slots, which are not written any more."""
        for slot in table.slots:
            self._pool.share(slot)
        return Table(table.slots.copy(), source=table.source)


class Sources:
    """Whose source is encoded, over all sequences of a cache.

    Args:
        sharing: whether sequences share what is encoded.
    """

    def __init__(self, spec: KVSpec, index: PrefixIndex, *, sharing: bool) -> None:
        self._group = spec.source_group
        self._index = index
        self._sharing = sharing

    def published(self, blocks: SequenceBlocks, depth: int) -> int | None:
        """The published slot at a depth of a sequence's source; None where there is none."""
        if self._group is None or blocks.source is None:
            return None
        return self._index.lookup(self._group, blocks.source, depth)

    def look_at(self, blocks: SequenceBlocks) -> None:
        """A sequence that held nothing has what is published; its source is encoded if that is."""
        blocks.encoded = self._group is not None and bool(blocks.tables[self._group].slots)

    def has(self, blocks: SequenceBlocks) -> bool:
        """Whether nothing is to be encoded for a sequence that holds nothing, or it has no source."""
        if blocks.source is None:
            return True
        return all(self.published(blocks, depth) is not None for depth in range(len(blocks.source)))

    def is_pending(self, blocks: SequenceBlocks) -> bool:
        """Whether another sequence has the same source encoded now."""
        return blocks.source is not None and self._index.is_pending(blocks.source.key(0))

    def encode(self, blocks: SequenceBlocks) -> bool:
        """Whether the plan being made has to encode a sequence's source; it counts as encoded from now on."""
        if blocks.source is None or blocks.encoded:
            return False
        blocks.encoded = blocks.unoffered = True
        if self._shares(blocks):
            self._index.announce(blocks.source.key(0), blocks.sequence)
        return True

    def offer(self, blocks: SequenceBlocks) -> None:
        """What a sequence has encoded is offered to others."""
        blocks.unoffered = False
        if self._group is None or blocks.source is None or not self._shares(blocks):
            return
        for depth, slot in enumerate(blocks.tables[self._group].slots):
            self._index.publish(self._group, blocks.source, depth, slot)

    def _shares(self, blocks: SequenceBlocks) -> bool:
        return self._sharing and not blocks.apart

    def found(self, blocks: SequenceBlocks, tokens: int) -> PrefixFound:
        """What the prefix cache had of a source of `tokens` tokens, which a sequence that comes in takes from there."""
        if not self._sharing:
            return PrefixFound(0, 0, "off")
        return PrefixFound(tokens, tokens) if blocks.encoded else PrefixFound(tokens, 0, "unseen")
