"""The KV cache as the scheduler sees it: what sequences hold over all groups, in transactions."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from penstock.cache.chain import NOBODY, KeyFunction, Owner, PrefixChain, keyed_hash, tag_of, token_bytes
from penstock.cache.eviction import EvictionKey, least_recently_used
from penstock.cache.groups import RELEASED, Group, Missing, RecordGroup, Table, TokenGroup
from penstock.cache.held import Brought, SequenceBlocks
from penstock.cache.keeping import Keeping
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex
from penstock.cache.shelf import Shelf
from penstock.cache.shelves import Shelves
from penstock.cache.sources import SourceGroup, Sources, source_chain
from penstock.cache.tiers import origins, tiers_found
from penstock.cache.transfers import Transfers
from penstock.core.facts import PrefixFound, TierFound, Unread
from penstock.core.kv import KVSpec
from penstock.core.kv_events import KVEvent
from penstock.core.plan import BlockUpdate


class KVCache:
    """Tables of sequences, prefix cache and pool under one roof.

    Args:
        spec: geometry; all groups share one pool.
        num_blocks: size of the pool.
        namespace: everything that KV depends on besides tokens, as bytes.
        key_of: hash of the prefix chain; tests inject a colliding one.
        prefix_caching: whether finished slots are published and hit.
        events: whether `take_events` tells what changes in that.
        kept_share: how much of the pool, in 0..1, may be kept on request.
        pool: the kind of pool; tests inject one that is tighter at times.
    """

    def __init__(
        self,
        spec: KVSpec,
        num_blocks: int,
        *,
        namespace: bytes = b"",
        key_of: KeyFunction | None = None,
        prefix_caching: bool = True,
        events: bool = False,
        eviction_key: EvictionKey = least_recently_used,
        kept_share: float = 0.0,
        pool: type[BlockPool] = BlockPool,
    ) -> None:
        self.spec = spec
        self.slot_bytes: Callable[[int], int] = spec.slot_bytes
        self.prefix_caching = prefix_caching
        self.tells_events = events
        self.index = PrefixIndex(len(spec.groups), events=events)
        self.pool = pool(num_blocks, self.index, eviction_key, int(kept_share * num_blocks))
        self.sources = Sources(spec, self.index, sharing=prefix_caching)
        self._groups: list[Group] = [self._group(number) for number in range(len(spec.groups))]
        # Whether each step writes into something that is there already.
        self._records = any(group.record_interval is not None for group in spec.groups)
        self._key_of = key_of or keyed_hash(b"")
        self._namespace = namespace
        self.transfers = Transfers(self.pool)
        self.shelves = Shelves()
        self.keeping = Keeping(spec, self.pool, self.index, self.shelves)

    def _group(self, number: int) -> Group:
        spec, size = self.spec.groups[number], self.spec.block_size
        if spec.sees.source:
            return SourceGroup(number, spec, self.pool, self.index)
        if spec.record_interval is None:
            return TokenGroup(number, spec, size, self.pool, self.index)
        return RecordGroup(number, spec, size, self.pool, self.index, keeps=self.prefix_caching)

    def put_on(self, shelves: Sequence[Shelf], slot_bytes: Callable[[int], int] | None = None) -> None:
        """What is published from now on is written to each, and read from the first that has it once the pool has not.

        They are ordered, the fastest first, and come behind those that there are. `slot_bytes` are those of a group's
        slot there; None: as in the pool.
        """
        self.slot_bytes = slot_bytes or self.slot_bytes
        self.shelves = Shelves([*self.shelves.ordered, *shelves])
        self.keeping = Keeping(self.spec, self.pool, self.index, self.shelves)
        self.index.on_publish = lambda group, chain, depth, slot: self.shelves.write(
            group, chain.kept_key(depth), self.pool.blocks_of(slot), chain.owner.weight
        )

    def tick(self, now: float) -> None:
        """It is `now`, in seconds, on a clock that never goes back: what was to be kept until now no longer is."""
        self.pool.tick(now)
        self.shelves.tick(now)

    def measured(self, tokens: int, seconds: float) -> None:
        """A step computed this number of tokens of prompts, and little else."""
        self.shelves.computed(tokens, seconds)

    def take_events(self) -> Sequence[KVEvent]:
        """What has changed in the prefix cache since this was asked before; nothing where it is not noted."""
        return self.index.take_events()

    def open(
        self,
        sequence: int,
        salt: str,
        *,
        tenant: str = "",
        weight: float = 1.0,
        most: int | None = None,
        private: bool = False,
        source: Sequence[int] = (),
    ) -> SequenceBlocks:
        """Empty tables for a new sequence; requests with different salts never share slots.

        What shelves have of it is its tenant's, who has a share of their room by its weight. `most` and `private` are
        as in `SequenceBlocks`. What it computes depends on the tokens of its `source` too.
        """
        root = self._key_of(self._namespace, salt.encode())
        owner = Owner(tag_of(tenant, self._key_of), weight) if self.shelves else NOBODY
        chain, of_source = PrefixChain(salt.encode(), root, self.spec.block_size, self._key_of, owner), None
        if source:
            chain = chain.under(token_bytes(source))
            of_source = source_chain(chain, source)
        return SequenceBlocks(
            sequence, chain, self._tables(of_source), most=most, private=private, apart=private, source=of_source
        )

    def _tables(self, source: PrefixChain | None) -> list[Table]:
        """Empty tables of a sequence, with the keys of its source's slots."""
        return [Table(source=source if group.sees.source else None) for group in self.spec.groups]

    def chunk(self, start: int, count: int) -> int:
        """How many of the next `count` positions to compute together, so that records are kept where they should be."""
        for group in self.spec.groups:
            if group.record_interval is not None:
                count = min(count, group.record_interval - start % group.record_interval)
        return count

    def longest_hit(self, blocks: SequenceBlocks, known: list[int], most: int | None = None) -> int:
        """How many leading slots of `known` all groups can take from the cache; nothing is held yet.

        `most` is how many of its tokens they may have, where the output of the position behind is wanted.
        """
        if not self.prefix_caching:
            return 0
        blocks.chain.extend(known, len(known))
        limit = len(blocks.chain)
        if most is not None:
            limit = min(limit, most // self.spec.block_size)
        if self._records:
            # The last token is always computed, and a record cannot go back.
            limit = min(limit, (len(known) - 1) // self.spec.block_size)
        return self.shorten_hit(blocks, limit)

    def shorten_hit(self, blocks: SequenceBlocks, limit: int, shelves: Shelves | None = None) -> int:
        """The longest hit of at most `limit` slots; with `shelves`, what these have counts too."""
        while limit:
            accepted = limit
            for group in self._groups:
                accepted = group.hit(blocks.chain, accepted, shelves)
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
        """Give an empty sequence its first `hit` slots from the cache; returns the tokens that need no work.

        Of its `known` tokens the last is always left to compute, since its output is wanted: where its slot is hit
        too, the slot is shared and copied on the write.
        """
        for number, (group, table) in enumerate(zip(self._groups, blocks.tables, strict=True)):
            if missing := group.attach(table, blocks.chain, hit):
                raise RuntimeError(f"slot {missing[0].depth} of group {number} was hit and is not there")
        self.sources.look_at(blocks)
        blocks.published = hit
        blocks.room = hit * self.spec.block_size
        tokens = min(blocks.room, known - 1)
        blocks.shares = tokens < blocks.room
        return tokens

    def reach(self, blocks: SequenceBlocks, hit: int, known: int, most: int, shelves: Shelves) -> int:
        """How many leading slots an empty sequence of `known` tokens could have with those of `shelves`.

        It may have at most `most` of its tokens from there, and never the last, since its output is wanted.
        """
        limit = min(len(blocks.chain), most // self.spec.block_size, (known - 1) // self.spec.block_size)
        if limit <= hit:
            return hit
        return max(hit, self.shorten_hit(blocks, limit, shelves))

    def bring(
        self, blocks: SequenceBlocks, hit: int, reach: int, fits: Callable[[], bool], shelves: Shelves
    ) -> tuple[Brought | None, tuple[TierFound, ...]]:
        """Give an empty sequence its first `reach` slots; the pool has no more than `hit` in all groups.

        Those that it has not are read from `shelves`, and hold nothing before the batch is over. None, and no change,
        where there are too few blocks for them, reading them does not pay, or what is missing does not fit. Either way,
        what the shelves had.
        """
        wanted = self.attach(blocks, reach)
        needed = sum(self._groups[number].width for number, _ in wanted)
        slots = [(number, blocks.chain.kept_key(missing.depth)) for number, missing in wanted]
        tokens = (reach - hit) * self.spec.block_size
        why: Unread | None = None
        if not shelves.pays(tokens, slots):
            why = "slower"
        elif needed > self.pool.num_available or not fits():
            why = "no_room"
        depths = [missing.depth for _, missing in wanted]
        origin = origins(shelves, zip(depths, slots, strict=True), hit, reach)
        found = tiers_found(shelves, self.spec.block_size, self.slot_bytes, origin, slots, why)
        if why is not None:
            # Nothing was taken yet for which the pool would have had to give up what it has.
            self.free(blocks, until=None)
            return None, found
        taken = []
        for number, missing in wanted:
            taken += self.pool.take(1, self._groups[number].width)
            self._groups[number].give(blocks.tables[number], missing.place, taken[-1])
        # What the pool had of them is published, and what comes will be.
        blocks.published = min(depths)
        blocks.room, blocks.shares = reach * self.spec.block_size, False
        until = self.pool.now + shelves.patience(tokens)
        brought = Brought(blocks, hit, reach, until, origin)
        for place, name, depth in zip(taken, slots, depths, strict=True):
            brought.depths[shelves.read(brought.reading, *name, self.pool.blocks_of(place))] = depth
        self.transfers.hold(brought.reading.batch, taken)
        return brought, found

    def attach(self, blocks: SequenceBlocks, reach: int) -> list[tuple[int, Missing]]:
        """Share with an empty sequence what is published of what its first `reach` slots need; the others, by group."""
        wanted: list[tuple[int, Missing]] = []
        for number, (group, table) in enumerate(zip(self._groups, blocks.tables, strict=True)):
            wanted += ((number, missing) for missing in group.attach(table, blocks.chain, reach))
        self.sources.look_at(blocks)
        return wanted

    def left_behind(self, blocks: SequenceBlocks, reach: int, most: int) -> tuple[TierFound, ...]:
        """What shelves have of the next of `most` tokens, behind a slot at `reach` that none has."""
        end = min(len(blocks.chain), most // self.spec.block_size)
        first = (self.shelves.first_with((0, blocks.chain.kept_key(depth))) for depth in range(reach, end))
        counts = Counter(shelf.name for shelf in first if shelf is not None)
        return tuple(
            TierFound(name, left=count * self.spec.block_size, why_left="gone") for name, count in counts.items()
        )

    def bytes_held(self, blocks: SequenceBlocks) -> int:
        """Bytes of all slots that a sequence holds, which others may hold too."""
        pairs = zip(self._groups, blocks.tables, strict=True)
        return sum(len(table.held()) * group.width for group, table in pairs) * self.spec.block_bytes

    def receive(self, brought: Brought, known: list[int] | None) -> int:
        """What was brought to a sequence of the tokens `known` has come, and is published as far as it has.

        None: the sequence does not wait for it any more, and only the books of the shelves learn of it. Returns how
        many leading slots it has now.
        """
        self.shelves.was_read(brought.reading)
        if known is None:
            return brought.hit
        failures = brought.reading.batch.failures
        whole = min((brought.depths[each] for each in failures), default=brought.reach)
        self.publish(brought.blocks, known, whole * self.spec.block_size)
        return max(whole, brought.hit)

    def next_is_pending(self, blocks: SequenceBlocks, hit: int) -> bool:
        """Whether the full slot after `hit` slots from the cache is being computed by another sequence now."""
        return hit < len(blocks.chain) and self.index.is_pending(blocks.chain.key(hit))

    def blocks_needed(self, blocks: SequenceBlocks, tokens: int, chunk: int) -> int:
        """Further blocks that computing up to `tokens` tokens will take, in chunks of at most `chunk`."""
        held = sum(len(table.held()) * group.width for table, group in zip(blocks.tables, self._groups, strict=True))
        copy = self.spec.growth if blocks.shares else 0
        source = 0 if blocks.source is None else len(blocks.source) * self.spec.block_size
        return max(0, self.spec.blocks_for(tokens, chunk, blocks.most, source) - held) + copy

    def reserve(
        self, blocks: SequenceBlocks, start: int, end: int, *, plan: int, until: int | None, drafts: bool = False
    ) -> int:
        """Make slots for positions `start` to `end - 1`, all or nothing; returns how many blocks are missing (0: done).

        What no position from `start` on can see is released in any case. `plan` is the number of the plan being made,
        `until` the newest outstanding plan that may still read what this sequence has. With `drafts`, the positions may
        have been computed in vain, and `roll_back` follows.
        """
        # Most steps of a decoding sequence end here. What its windows have passed is given back with the next slot.
        if not self._groups or (end <= blocks.room and not blocks.shares and not self._records):
            return 0
        pairs = list(zip(self._groups, blocks.tables, strict=True))
        for group, table in pairs:
            group.release_passed(table, start, until)
        wants = [group.wants(table, start, end, drafts=drafts) for group, table in pairs]
        wanted = sum((want.fresh + want.copies) * group.width for want, (group, _) in zip(wants, pairs, strict=True))
        if wanted > self.pool.num_available:
            return wanted - self.pool.num_available
        for number, (want, (group, table)) in enumerate(zip(wants, pairs, strict=True)):
            copy = group.take(table, start, end, want, plan, drafts=drafts)
            if copy is not None:
                self.transfers.copy(number, *copy)
        if blocks.shares:
            # What is published and written again was hit only in part, and its private copy gets a key of its own.
            blocks.published = min(blocks.published, start // self.spec.block_size)
            blocks.shares = False
        blocks.room = max(blocks.room, -(-end // self.spec.block_size) * self.spec.block_size)
        return 0

    def announce(self, blocks: SequenceBlocks, start: int, end: int) -> None:
        """Make the keys of full prompt blocks in `start` to `end - 1` visible as pending until `settle`."""
        size = self.spec.block_size
        if blocks.apart:
            return
        for index in range(start // size, min(end // size, len(blocks.chain))):
            self.index.announce(blocks.chain.key(index), blocks.sequence)

    def settle(self, blocks: SequenceBlocks) -> None:
        """The plan that computes the announced blocks has committed, or will not be."""
        self.index.settle(blocks.sequence)

    def publish(self, blocks: SequenceBlocks, known: list[int], computed: int, *, until: int | None = None) -> None:
        """Offer the slots that verified tokens up to `computed` have filled to other sequences.

        `until` is the newest outstanding plan that may touch what is not held any more then.
        """
        full, offered = computed // self.spec.block_size, None
        first = blocks.published
        if blocks.unoffered:
            self.sources.offer(blocks)
        if self.prefix_caching and not blocks.apart:
            if full <= first and not self._records:
                return
            # No further: a fork takes the chain as it is, and its tokens may be others.
            offered = blocks.chain
            offered.extend(known, computed)
            blocks.published = max(first, full)
        elif not self._records:
            return
        for group, table in zip(self._groups, blocks.tables, strict=True):
            group.publish(table, offered, first, full, until)

    def fork(self, blocks: SequenceBlocks, sequence: int, tokens: int) -> SequenceBlocks | None:
        """Tables for `sequence`, which shares what is needed after the first `tokens` tokens.

        None, sharing nothing, where not all of that is held. The first sequence that writes into a shared slot gets a
        copy.
        """
        tables: list[Table] = []
        for group, table in zip(self._groups, blocks.tables, strict=True):
            shared = group.fork(table, tokens)
            if shared is None:
                for other in tables:
                    self._give_back(other, None)
                return None
            tables.append(shared)
        blocks.shares = True
        size = self.spec.block_size
        return SequenceBlocks(
            sequence,
            blocks.chain.copy(),
            tables,
            -(-tokens // size) * size,
            min(blocks.published, tokens // size),
            shares=True,
            most=blocks.most,
            private=blocks.private,
            apart=blocks.apart,
            source=blocks.source,
            encoded=blocks.encoded,
        )

    def roll_back(self, blocks: SequenceBlocks, end: int, *, until: int | None) -> int:
        """Positions behind `end` were drafts that were wrong. Up to which position, at most `end`, there is state now.

        There is a slot for position `end` itself.
        """
        valid = min(
            group.roll_back(table, end, until) for group, table in zip(self._groups, blocks.tables, strict=True)
        )
        size = self.spec.block_size
        blocks.room = min(blocks.room, (end // size + 1) * size)
        return valid

    def drop(self, blocks: SequenceBlocks, group: int, indices: Sequence[int], *, until: int | None) -> None:
        """Give up slots of a group that sees everything, without which later positions do; those behind move up.

        `indices` are where they stand in the table, ascending. What is computed then depends on it, so that nothing
        more of the sequence is published.
        """
        table = blocks.tables[group]
        for index in reversed(indices):
            self.pool.release(table.slots.pop(index), depth=index, until=until)
        table.dropped += len(indices)
        table.sent = min(table.sent, indices[0])
        blocks.apart = True

    def free(self, blocks: SequenceBlocks, *, until: int | None) -> None:
        """Give back everything; blocks that an outstanding plan may touch retire until `until` has committed."""
        self.settle(blocks)
        for table in blocks.tables:
            self._give_back(table, until)
        blocks.tables = self._tables(blocks.source)
        blocks.room = blocks.published = 0
        blocks.shares, blocks.apart = False, blocks.private
        blocks.encoded = blocks.unoffered = False

    def _give_back(self, table: Table, until: int | None) -> None:
        if RELEASED in table.slots:
            for index, slot in enumerate(table.slots):
                if slot != RELEASED:
                    self.pool.release(slot, depth=index, until=until)
        else:
            self.pool.release_all(table.slots, until=until)
        for _, slot in table.beside():
            self.pool.release(slot, until=until)

    def needed_from(self, blocks: SequenceBlocks, tokens: int) -> list[list[tuple[int, int]]] | None:
        """Per group, index and slot of what positions from `tokens` on need; None where there is no such state."""
        needed = []
        for group, table in zip(self._groups, blocks.tables, strict=True):
            slots = group.needed(table, tokens)
            if slots is None:
                return None
            needed.append(slots)
        return needed

    def published(self, blocks: SequenceBlocks, group: int, index: int, tokens: int) -> int | None:
        """The published slot that has what slot `index` of this sequence's first `tokens` tokens had, if there is one.

        It is full, or a source's.
        """
        spec = self.spec.groups[group]
        if spec.record_interval is not None or not self.prefix_caching:
            return None
        if spec.sees.source:
            return self.sources.published(blocks, index)
        if index >= min(tokens // self.spec.block_size, len(blocks.chain)):
            return None
        return self.index.lookup(group, blocks.chain, index)

    def restore(self, blocks: SequenceBlocks, group: int, slots: list[tuple[int, int]], tokens: int) -> None:
        """Give a sequence that held nothing what `needed_from` said of its first `tokens` tokens, in other slots."""
        table = blocks.tables[group]
        size = 1 + max((index for index, _ in slots), default=-1)
        table.slots = [RELEASED] * size
        for index, slot in slots:
            table.slots[index] = slot
        table.position = tokens
        # What was swapped out was encoded.
        blocks.encoded = blocks.source is not None
        blocks.room = -(-tokens // self.spec.block_size) * self.spec.block_size

    def take_updates(self, blocks: SequenceBlocks) -> tuple[BlockUpdate, ...]:
        """Entries of the tables that the executor does not know yet."""
        updates = []
        for group, table in enumerate(blocks.tables):
            if table.sent < len(table.slots):
                updates.append(BlockUpdate(group, table.sent, self._blocks_from(table, self._groups[group].width)))
                table.sent = len(table.slots)
        return tuple(updates)

    def _blocks_from(self, table: Table, width: int) -> list[int]:
        """The blocks of what the executor does not know yet, those of each slot together."""
        slots = table.slots[table.sent :]
        if width == 1:
            return slots
        blocks: list[int] = []
        for slot in slots:
            blocks += (RELEASED,) * width if slot == RELEASED else self.pool.blocks_of(slot)
        return blocks

    def exclusive_blocks(self, blocks: SequenceBlocks) -> int:
        """How many blocks would become available if this sequence gave back everything."""
        return sum(
            group.width
            for table, group in zip(blocks.tables, self._groups, strict=True)
            for slot in table.held()
            if self.pool.references(slot) == 1
        )

    def check(self, sequences: Iterable[SequenceBlocks]) -> None:
        """Raise RuntimeError unless pool and tables agree: every reference is in a table, every block in one state."""
        held: dict[int, int] = {}
        tables = [table.held() for blocks in sequences for table in blocks.tables]
        for slot in chain(self.transfers.held(), *tables):
            held[slot] = held.get(slot, 0) + 1
        self.pool.check(held)
        self.shelves.check()
