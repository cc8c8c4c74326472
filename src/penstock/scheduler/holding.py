"""What a sequence holds of its context when it comes into the batch, and what becomes of it at a preemption."""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from msgspec.structs import replace

from penstock.cache.held import Brought
from penstock.cache.manager import KVCache
from penstock.cache.swap import SwapSpace
from penstock.cache.tiers import tiers_came
from penstock.cache.transfers import Batch
from penstock.core.facts import Fetched, StepFacts, TierCame, TierFound
from penstock.core.plan import ShelfName, StepPlan, StepResult
from penstock.scheduler.room import Room
from penstock.scheduler.sequence import Sequence


class Held(NamedTuple):
    """With what a sequence comes in.

    Attributes:
        tokens: positions that need no work.
        cached: those that the prefix cache has, in the pool or on a shelf; of a sequence with a source, those of that.
        loading: the transfers that bring them, where they were swapped out or are on a shelf; nothing can be computed
            before.
        brought: what comes from shelves.
        tiers: where its tokens were found, and what was left there; nothing where there is only the pool.
    """

    tokens: int
    cached: int
    loading: Batch | None = None
    brought: Brought | None = None
    tiers: tuple[TierFound, ...] = ()

    @property
    def swapped(self) -> int:
        """Positions whose state is in the processor's memory."""
        return 0 if self.loading is None or self.brought is not None else self.tokens


class Holding:
    """Attaches sequences to the prefix cache, or to what was swapped out of them, and takes their blocks away."""

    def __init__(self, cache: KVCache, swap: SwapSpace, room: Room) -> None:
        self._cache = cache
        self._swap = swap
        self._room = room
        # Sequences for which something comes in.
        self._loading: dict[Batch, Sequence] = {}
        # What comes from shelves, and for which sequence it was to come.
        self._brought: dict[Batch, tuple[Brought, Sequence]] = {}
        self._fetched: list[Fetched] = []
        self._stored: dict[ShelfName, int] = {}

    def set_aside(self, victim: Sequence) -> bool:
        """Keep what a sequence has, whose blocks are taken from it. False: it was to be swapped out, without room.

        What is computed in outstanding plans is swapped out too: they come before the plan that copies it, and where
        one fails, the sequence does.
        """
        # What comes in is not there yet.
        if not self._swap.num_blocks or victim.loading or victim.bounded is not None:
            return True
        victim.swapped = self._swap.swap_out(victim.blocks, victim.reserved)
        return victim.swapped is not None

    def attach_if_it_fits(self, sequence: Sequence, hit: int, running: int) -> Held | None:
        """Hold the cached prefix of `hit` blocks, or what was swapped out where that is at least the same.

        None, holding nothing, where all known tokens don't fit beside `running` other sequences.
        """
        if self._cache.spec.keeps_nothing:
            return Held(0, 0)
        known, size = len(sequence.tokens), self._cache.spec.block_size
        copy, swapped, cached = sequence.swapped, sequence.swapped_tokens, min(hit * size, known - 1)
        if copy is not None and 0 < swapped >= cached:
            loading = self._swap.swap_in(sequence.blocks, copy, lambda shared: self._fits(sequence, running, shared))
            if loading is None:
                return None
            sequence.swapped = None
            return Held(swapped, cached, None if loading.is_over else loading)
        held, left = self._bring(sequence, hit, running)
        if held is not None:
            return held
        # A block that is hit but for its last token costs a copy; in a full pool it is computed again instead.
        whole_blocks = (known - 1) // size
        for length in dict.fromkeys((hit, min(hit, whole_blocks))):
            if length != hit:
                length = self._cache.shorten_hit(sequence.blocks, length)
            cached = self._cache.attach_prefix(sequence.blocks, length, known)
            if self._fits(sequence, running):
                self.forget(sequence)
                found = len(sequence.request.source) if sequence.blocks.encoded else cached
                return Held(cached, found, tiers=self._with_pool(sequence, cached, left))
            self._cache.free(sequence.blocks, until=None)
        return None

    def _bring(self, sequence: Sequence, hit: int, running: int) -> tuple[Held | None, tuple[TierFound, ...]]:
        """Begin to read from shelves what they have behind a hit of `hit` blocks; None, holding nothing: not.

        Besides, what is left there.
        """
        cache, known = self._cache, len(sequence.tokens)
        if not cache.shelves or sequence.has_read:
            return None, ()
        left: tuple[TierFound, ...] = ()
        for shelves in cache.shelves.choices():
            reach = cache.reach(sequence.blocks, hit, known, sequence.cacheable, shelves)
            if reach <= hit:
                break
            brought, found = cache.bring(sequence.blocks, hit, reach, lambda: self._fits(sequence, running), shelves)
            if brought is not None:
                self.forget(sequence)
                sequence.has_read = True
                batch = brought.reading.batch
                self._brought[batch] = brought, sequence
                tokens = reach * cache.spec.block_size
                others = (each for each in left if each.tier not in {read.tier for read in found})
                tiers = self._with_pool(sequence, hit * cache.spec.block_size, (*found, *others))
                return Held(tokens, tokens, batch, brought, tiers), ()
            left = left or found
        return None, left or cache.left_behind(sequence.blocks, hit, sequence.cacheable)

    def _with_pool(self, sequence: Sequence, cached: int, others: tuple[TierFound, ...]) -> tuple[TierFound, ...]:
        """What a sequence has of the pool, `cached` tokens, and what shelves had."""
        if not self._cache.shelves:
            return ()
        held = self._cache.bytes_held(sequence.blocks) - sum(each.bytes for each in others)
        return TierFound("pool", cached, held), *others

    def _fits(self, sequence: Sequence, running: int, shared: int = 0) -> bool:
        """Whether there is room for all its known tokens; it holds `shared` blocks that are not in its tables yet."""
        return self._room.blocks_to_admit(sequence, running) - shared <= self._room.blocks(running)

    def expect(self, sequence: Sequence, loading: Batch) -> None:
        """A sequence can compute nothing before these transfers are over."""
        sequence.loading = True
        self._loading[loading] = sequence

    def forget_load(self, sequence: Sequence) -> None:
        """What comes in for a sequence is of no use to it."""
        if sequence.loading:
            sequence.loading = False
            self._loading = {batch: each for batch, each in self._loading.items() if each is not sequence}

    def give_up_late(self) -> list[Sequence]:
        """Sequences that have waited long enough for what is on a shelf, and wait for it no more."""
        now, size, late = self._cache.pool.now, self._cache.spec.block_size, []
        for batch, (brought, sequence) in self._brought.items():
            if batch in self._loading and brought.until <= now:
                late.append(sequence)
                self._cache.shelves.give_up(brought.reading)
                counts = Counter(brought.origins)
                came = [TierCame(name, 0, count * size, "late") for name, count in counts.items()]
                self._fetched.append(Fetched(sequence.request.request_id, sequence.sample_index, came))
        return late

    def tell(self, facts: StepFacts) -> StepFacts:
        """Facts with what came from shelves, what did not, and what was written there, since the last ones."""
        if self._fetched or self._stored:
            facts = replace(facts, fetched=self._fetched, stored=self._stored)
            self._fetched, self._stored = [], {}
        return facts

    def settle(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Sequences whose state has come in go on; returns those to which it did not come whole."""
        over = self._cache.transfers.settle(plan.number, result.transfers, failed=result.failed)
        self._swap.settle(over)
        for name, slots in self._cache.keeping.settle(over).items():
            self._stored[name] = sum(self._cache.slot_bytes(group) for group, _ in slots)
        failed = []
        for batch in over:
            sequence, brought = self._loading.pop(batch, None), self._brought.pop(batch, None)
            if brought is not None:
                self._receive(*brought, waits=sequence is not None)
            if sequence is not None:
                sequence.loading = False
                if batch.failed:
                    failed.append(sequence)
        return failed

    def _receive(self, brought: Brought, sequence: Sequence, *, waits: bool) -> None:
        """What was brought for a sequence has come as far as it has; `waits`: the sequence has waited for it."""
        reached = self._cache.receive(brought, sequence.tokens if waits else None)
        whole = reached - brought.hit if waits else None
        cache = self._cache
        came = tiers_came(brought.reading, cache.spec.block_size, cache.slot_bytes, brought.origins, whole)
        self._fetched.append(Fetched(sequence.request.request_id, sequence.sample_index, came))

    def look_for_kept(self, sequence: Sequence) -> None:
        """How much of what it has from the cache, and wants kept, is kept already."""
        size, keep = self._cache.spec.block_size, sequence.request.keep
        # The block of the last token is hit although that token is computed again.
        hit = -(-(sequence.cached_tokens or 0) // size)
        if keep:
            depths = min(hit, keep[-1].tokens // size)
            sequence.kept_before = self._cache.keeping.kept_tokens(sequence.blocks.chain, depths)
        self._cache.keeping.use(sequence.blocks.chain, hit)

    def keep(self, sequence: Sequence) -> None:
        """Keep the prefixes that its request wants kept, as far as they are computed."""
        keep = sequence.request.keep
        while len(sequence.kept_now) < len(keep) and keep[len(sequence.kept_now)].tokens <= sequence.computed:
            prefix = keep[len(sequence.kept_now)]
            sequence.kept_now.append(self._keep(sequence, prefix.tokens, prefix.seconds))

    def _keep(self, sequence: Sequence, tokens: int, seconds: float, *, in_pool: bool = True) -> int:
        """Keep what is published of a sequence's first tokens; how many are kept."""
        blocks = sequence.blocks
        depths = min(tokens // self._cache.spec.block_size, blocks.published)
        return self._cache.keeping.keep(blocks.chain, depths, seconds, in_pool=in_pool)

    def end(self, sequence: Sequence) -> None:
        """A sequence gives back all that it holds; what its request wants kept of it is kept beyond the pool."""
        if sequence.request.keep_whole and self._cache.shelves.keep_any:
            self._keep(sequence, len(sequence.tokens), sequence.request.keep_whole, in_pool=False)
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """A sequence gives back all that it holds, and what is on its way to it."""
        self._cache.free(sequence.blocks, until=sequence.last_plan)
        self.forget(sequence)
        self.forget_load(sequence)

    def check(self, sequences: Collection[Sequence]) -> None:
        """Raise RuntimeError unless books and sequences, which are all that have not ended, agree."""
        self._cache.check(sequence.blocks for sequence in sequences)
        self._swap.check(each.swapped for each in sequences if each.swapped is not None)
        for sequence in sequences:
            if not sequence.computed <= sequence.reserved <= len(sequence.tokens) + sequence.in_flight:
                raise RuntimeError(f"sequence {sequence.id}: computed, reserved and known tokens are out of order")
            if not sequence.running and any(table.held() for table in sequence.blocks.tables):
                raise RuntimeError(f"sequence {sequence.id} waits but holds blocks")

    def forget(self, sequence: Sequence) -> None:
        """What was swapped out of a sequence is of no more use."""
        if sequence.swapped is not None:
            self._swap.discard(sequence.swapped)
            sequence.swapped = None
