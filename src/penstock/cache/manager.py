"""The KV cache as the scheduler sees it: block tables of sequences over all groups, in transactions."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.cache.chain import KeyFunction, PrefixChain, keyed_hash
from penstock.cache.eviction import EvictionKey, least_recently_used
from penstock.cache.groups import group_policy
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex
from penstock.core.facts import PrefixFound
from penstock.core.kv import KVSpec
from penstock.core.plan import BlockCopy, BlockUpdate

RELEASED = -1


@dataclass(slots=True)
class SequenceBlocks:
    """The block tables of one sequence.

    Attributes:
        sequence: the one that the tables are for.
        chain: keys of its full blocks.
        tables: per group, block ids by absolute index; RELEASED before the window.
        kept_from: per group, index of the first entry that is not released.
        sent: per group, how many leading entries the executor already knows.
        published: number of leading blocks that were offered to the prefix index.
        shares: whether the last block may be shared or published, so that writing needs a look.
    """

    sequence: int
    chain: PrefixChain
    tables: list[list[int]]
    kept_from: list[int]
    sent: list[int]
    published: int = 0
    shares: bool = False


class KVCache:
    """Block tables, prefix cache and pool under one roof.

    Args:
        spec: geometry; all groups share one pool.
        num_blocks: size of the pool.
        namespace: everything that KV depends on besides tokens, as bytes.
        key_of: hash of the prefix chain; tests inject a colliding one.
        prefix_caching: whether finished blocks are published and hit.
        kept_share: how much of the pool, in 0..1, may be kept on request.
    """

    def __init__(
        self,
        spec: KVSpec,
        num_blocks: int,
        *,
        namespace: bytes = b"",
        key_of: KeyFunction | None = None,
        prefix_caching: bool = True,
        eviction_key: EvictionKey = least_recently_used,
        kept_share: float = 0.0,
    ) -> None:
        self.spec = spec
        self.prefix_caching = prefix_caching
        self.index = PrefixIndex(len(spec.groups))
        self.pool = BlockPool(num_blocks, self.index, eviction_key, int(kept_share * num_blocks))
        self._policies = [group_policy(group, spec.block_size) for group in spec.groups]
        self._key_of = key_of or keyed_hash(b"")
        self._namespace = namespace
        self._copies: list[BlockCopy] = []

    def open(self, sequence: int, salt: str) -> SequenceBlocks:
        """Empty tables for a new sequence; requests with different salts never share blocks."""
        root = self._key_of(self._namespace, salt.encode())
        groups = len(self._policies)
        chain = PrefixChain(salt.encode(), root, self.spec.block_size, self._key_of)
        return SequenceBlocks(sequence, chain, [[] for _ in range(groups)], [0] * groups, [0] * groups)

    def longest_hit(self, blocks: SequenceBlocks, known: list[int], most: int | None = None) -> int:
        """How many leading blocks of `known` all groups can take from the cache; nothing is held yet.

        `most` is how many of its tokens they may have, where the output of the position behind is wanted.
        """
        if not self.prefix_caching:
            return 0
        blocks.chain.extend(known, len(known))
        limit = len(blocks.chain)
        return self.shorten_hit(blocks, limit if most is None else min(limit, most // self.spec.block_size))

    def shorten_hit(self, blocks: SequenceBlocks, limit: int) -> int:
        """The longest hit of at most `limit` blocks."""
        while limit:
            accepted = limit
            for group, policy in enumerate(self._policies):
                accepted = policy.hit(self.index, group, blocks.chain, accepted)
            # A group may have shortened what an earlier one accepted for another reason: ask again until all agree.
            if accepted == limit:
                break
            limit = accepted
        return limit

    def explain_hit(self, blocks: SequenceBlocks, known: list[int], most: int, found: int) -> PrefixFound:
        """How many tokens of `known[:most]` the cache had, which is `found`, and why it had no more."""
        size = self.spec.block_size
        if not self.prefix_caching or most < size <= len(known):
            return PrefixFound(0, 0, "off")
        looked_up = min(most, len(known) - 1) // size * size
        if looked_up <= found:
            return PrefixFound(found, found)
        miss = self.index.explain(blocks.chain, found // size, self.pool.now)
        return PrefixFound(looked_up, found, miss.missing, miss.position, miss.cached_token, miss.evicted_seconds)

    def attach_prefix(self, blocks: SequenceBlocks, hit: int, known: int) -> int:
        """Give an empty sequence its first `hit` blocks from the cache; returns the tokens that need no work.

        Of its `known` tokens the last is always left to compute, since its output is wanted: where its block is hit
        too, the block is shared and copied on the write.
        """
        for group, policy in enumerate(self._policies):
            first = policy.first_needed(hit * self.spec.block_size - 1) if hit else 0
            table = [RELEASED] * first
            for index in range(first, hit):
                block = self.index.lookup(group, blocks.chain, index)
                if block is None:
                    raise RuntimeError(f"block {index} of group {group} was hit and is not there")
                self.pool.share(block)
                table.append(block)
            blocks.tables[group] = table
            blocks.kept_from[group] = first
        blocks.published = hit
        tokens = min(hit * self.spec.block_size, known - 1)
        blocks.shares = tokens < hit * self.spec.block_size
        return tokens

    def next_is_pending(self, blocks: SequenceBlocks, hit: int) -> bool:
        """Whether the full block after `hit` blocks from the cache is being computed by another sequence now."""
        return hit < len(blocks.chain) and self.index.is_pending(blocks.chain.key(hit))

    def blocks_needed(self, blocks: SequenceBlocks, tokens: int, chunk: int) -> int:
        """Further blocks that computing up to `tokens` tokens will take, in chunks of at most `chunk`."""
        held = sum(len(table) - kept for table, kept in zip(blocks.tables, blocks.kept_from, strict=True))
        copy = 1 if blocks.shares else 0
        return max(0, self.spec.blocks_for(tokens, chunk) - held) + copy * len(self._policies)

    def reserve(self, blocks: SequenceBlocks, start: int, end: int, *, plan: int, until: int | None) -> int:
        """Make slots for positions `start` to `end - 1`, all or nothing; returns how many blocks are missing (0: done).

        Blocks that no position from `start` on can see are released in any case. `plan` is the number of the plan being
        made, `until` the newest outstanding plan that may still read blocks of this sequence.
        """
        size = self.spec.block_size
        needed = -(-end // size)
        # Most steps of a decoding sequence end here. What its windows have passed is given back with the next block.
        if needed <= len(blocks.tables[0]) and not blocks.shares:
            return 0
        for group, policy in enumerate(self._policies):
            self._release_before(blocks, group, policy.first_needed(start), until)
        wanted = sum(max(0, needed - len(table)) for table in blocks.tables)
        shared = self._shared_tail(blocks, start) if blocks.shares else []
        taken = self.pool.allocate(wanted + len(shared))
        if taken is None:
            return wanted + len(shared) - self.pool.num_available
        for group, index in shared:
            self._copy_on_write(blocks, group, index, taken.pop(), plan)
        blocks.shares = False
        for table in blocks.tables:
            missing = needed - len(table)
            if missing > 0:
                table.extend(taken[:missing])
                del taken[:missing]
        return 0

    def _shared_tail(self, blocks: SequenceBlocks, start: int) -> list[tuple[int, int]]:
        """Group and index of the blocks that position `start` would write into but may not."""
        index = start // self.spec.block_size
        return [
            (group, index)
            for group, table in enumerate(blocks.tables)
            if index < len(table) and not self.pool.is_writable(table[index])
        ]

    def _copy_on_write(self, blocks: SequenceBlocks, group: int, index: int, target: int, plan: int) -> None:
        source = blocks.tables[group][index]
        blocks.tables[group][index] = target
        blocks.sent[group] = min(blocks.sent[group], index)
        # A published block that is written again was hit only in part, and its private copy gets a key of its own.
        blocks.published = min(blocks.published, index)
        # The copy is made when the plan runs, so its source must outlive it.
        self.pool.release(source, depth=index, until=plan)
        self._copies.append(BlockCopy(source, target))

    def _release_before(self, blocks: SequenceBlocks, group: int, first: int, until: int | None) -> None:
        table = blocks.tables[group]
        for index in range(blocks.kept_from[group], min(first, len(table))):
            self.pool.release(table[index], depth=index, until=until)
            table[index] = RELEASED
        blocks.kept_from[group] = max(blocks.kept_from[group], min(first, len(table)))

    def announce(self, blocks: SequenceBlocks, start: int, end: int) -> None:
        """Make the keys of full prompt blocks in `start` to `end - 1` visible as pending until `settle`."""
        size = self.spec.block_size
        for index in range(start // size, min(end // size, len(blocks.chain))):
            self.index.announce(blocks.chain.key(index), blocks.sequence)

    def settle(self, blocks: SequenceBlocks) -> None:
        """The plan that computes the announced blocks has committed, or will not be."""
        self.index.settle(blocks.sequence)

    def publish(self, blocks: SequenceBlocks, known: list[int], computed: int) -> None:
        """Offer the blocks that verified tokens up to `computed` have filled to other sequences."""
        full = computed // self.spec.block_size
        if not self.prefix_caching or full <= blocks.published:
            return
        # No further: a fork takes the chain as it is, and its tokens may be others.
        blocks.chain.extend(known, computed)
        for index in range(blocks.published, full):
            for group, table in enumerate(blocks.tables):
                if table[index] != RELEASED:
                    self.index.publish(group, blocks.chain, index, table[index])
        blocks.published = full

    def keep(self, blocks: SequenceBlocks, tokens: int, seconds: float) -> int:
        """Keep the published blocks of the first `tokens` tokens; how many tokens that are, where room is short too."""
        size = self.spec.block_size
        for index in range(min(tokens // size, blocks.published)):
            for group in range(len(self._policies)):
                # Not always its own block: another sequence may have published the same prefix before.
                block = self.index.lookup(group, blocks.chain, index)
                if block is not None and not self.pool.keep(block, seconds):
                    return index * size
        return min(tokens // size, blocks.published) * size

    def kept_tokens(self, blocks: SequenceBlocks, hit: int) -> int:
        """Of the first `hit` blocks, which are in the cache, how many tokens are kept from the first on."""
        for index in range(hit):
            found = (self.index.lookup(group, blocks.chain, index) for group in range(len(self._policies)))
            # A group with a window has given back what is before it.
            if not all(block is None or self.pool.is_kept(block) for block in found):
                return index * self.spec.block_size
        return hit * self.spec.block_size

    def can_fork(self, blocks: SequenceBlocks, tokens: int) -> bool:
        """Whether everything that a fork after `tokens` tokens attends to is still held."""
        kept = zip(self._policies, blocks.kept_from, strict=True)
        return all(first <= policy.first_needed(tokens) for policy, first in kept)

    def fork(self, blocks: SequenceBlocks, sequence: int, tokens: int) -> SequenceBlocks:
        """Tables for `sequence`, which shares the blocks of the first `tokens` tokens.

        The first sequence that writes into a shared block gets a copy.
        """
        size = self.spec.block_size
        tables = [table[: -(-tokens // size)] for table in blocks.tables]
        for table in tables:
            for block in table:
                if block != RELEASED:
                    self.pool.share(block)
        blocks.shares = True
        return SequenceBlocks(
            sequence,
            blocks.chain.copy(),
            tables,
            blocks.kept_from.copy(),
            [0] * len(tables),
            min(blocks.published, tokens // size),
            shares=True,
        )

    def roll_back(self, blocks: SequenceBlocks, tokens: int, *, until: int | None) -> None:
        """Give back the blocks beyond the first `tokens` tokens: drafts in them were not accepted."""
        needed = -(-tokens // self.spec.block_size)
        for group, table in enumerate(blocks.tables):
            for index in range(len(table) - 1, needed - 1, -1):
                self.pool.release(table.pop(), depth=index, until=until)
            blocks.sent[group] = min(blocks.sent[group], len(table))

    def free(self, blocks: SequenceBlocks, *, until: int | None) -> None:
        """Give back everything; blocks that an outstanding plan may touch retire until `until` has committed."""
        self.settle(blocks)
        for group, table in enumerate(blocks.tables):
            for index, block in enumerate(table):
                if block != RELEASED:
                    self.pool.release(block, depth=index, until=until)
            blocks.tables[group] = []
            blocks.kept_from[group] = blocks.sent[group] = 0
        blocks.published = 0
        blocks.shares = False

    def needed_from(self, blocks: SequenceBlocks, tokens: int) -> list[tuple[int, list[int]]]:
        """Per group, the blocks with the first `tokens` positions that later ones attend to, and the first's index."""
        end = -(-tokens // self.spec.block_size)
        needed = []
        for policy, table in zip(self._policies, blocks.tables, strict=True):
            first = min(policy.first_needed(tokens), end)
            needed.append((first, table[first:end]))
        return needed

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The block copies that reservations since the last call ask for, in order."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def take_updates(self, blocks: SequenceBlocks) -> tuple[BlockUpdate, ...]:
        """Entries of the block tables that the executor does not know yet."""
        # All tables are equally long, and a change is sent with those behind it.
        if max(blocks.sent) == min(blocks.sent) == len(blocks.tables[0]):
            return ()
        updates = []
        for group, table in enumerate(blocks.tables):
            sent = blocks.sent[group]
            if sent < len(table):
                updates.append(BlockUpdate(group, sent, table[sent:]))
                blocks.sent[group] = len(table)
        return tuple(updates)

    def exclusive_blocks(self, blocks: SequenceBlocks) -> int:
        """How many blocks would become available if this sequence gave back everything."""
        return sum(self.pool.references(block) == 1 for table in blocks.tables for block in table if block != RELEASED)

    def check(self, sequences: Iterable[SequenceBlocks]) -> None:
        """Raise RuntimeError unless pool and tables agree: every reference is in a table, every block in one state."""
        held: dict[int, int] = {}
        for blocks in sequences:
            for table in blocks.tables:
                for block in table:
                    if block != RELEASED:
                        held[block] = held.get(block, 0) + 1
        self.pool.check(held)
