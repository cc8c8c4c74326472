"""What a sequence holds of its context when it comes into the batch, and what becomes of it at a preemption."""

from collections.abc import Collection
from typing import NamedTuple

from penstock.cache.manager import Brought, KVCache
from penstock.cache.swap import SwapSpace
from penstock.cache.transfers import Batch
from penstock.core.plan import StepPlan, StepResult
from penstock.scheduler.room import Room
from penstock.scheduler.sequence import Sequence


class Held(NamedTuple):
    """With what a sequence comes in.

    Attributes:
        tokens: positions that need no work.
        cached: those that the prefix cache has, in the pool or on a shelf.
        loading: the transfers that bring them, where they were swapped out or are on a shelf; nothing can be computed
            before.
        brought: what comes from shelves.
    """

    tokens: int
    cached: int
    loading: Batch | None = None
    brought: Brought | None = None

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
        self._brought: dict[Batch, Brought] = {}

    def set_aside(self, victim: Sequence) -> bool:
        """Keep what a sequence has, whose blocks are taken from it. False: it was to be swapped out, without room.

        What is computed in outstanding plans is swapped out too: they come before the plan that copies it, and where
        one fails, the sequence does.
        """
        # What comes in is not there yet.
        if not self._swap.num_blocks or victim.loading:
            return True
        victim.swapped = self._swap.swap_out(victim.blocks, victim.reserved)
        return victim.swapped is not None

    def attach_if_it_fits(self, sequence: Sequence, hit: int, running: int) -> Held | None:
        """Hold the cached prefix of `hit` blocks, or what was swapped out where that is at least the same.

        None, holding nothing, where all known tokens don't fit beside `running` other sequences.
        """
        known, size = len(sequence.tokens), self._cache.spec.block_size
        copy, swapped, cached = sequence.swapped, sequence.swapped_tokens, min(hit * size, known - 1)
        if copy is not None and 0 < swapped >= cached:
            loading = self._swap.swap_in(sequence.blocks, copy, lambda shared: self._fits(sequence, running, shared))
            if loading is None:
                return None
            sequence.swapped = None
            return Held(swapped, cached, None if loading.is_over else loading)
        if (held := self._bring(sequence, hit, running)) is not None:
            return held
        # A block that is hit but for its last token costs a copy; in a full pool it is computed again instead.
        whole_blocks = (known - 1) // size
        for length in dict.fromkeys((hit, min(hit, whole_blocks))):
            if length != hit:
                length = self._cache.shorten_hit(sequence.blocks, length)
            cached = self._cache.attach_prefix(sequence.blocks, length, known)
            if self._fits(sequence, running):
                self.forget(sequence)
                return Held(cached, cached)
            self._cache.free(sequence.blocks, until=None)
        return None

    def _bring(self, sequence: Sequence, hit: int, running: int) -> Held | None:
        """Begin to read from shelves what they have behind a hit of `hit` blocks; None, holding nothing: not."""
        cache, known = self._cache, len(sequence.tokens)
        if not cache.shelves or sequence.has_read:
            return None
        for shelves in cache.shelves.choices():
            reach = cache.reach(sequence.blocks, hit, known, sequence.cacheable, shelves)
            if reach <= hit:
                return None
            brought = cache.bring(sequence.blocks, hit, reach, lambda: self._fits(sequence, running), shelves)
            if brought is not None:
                self.forget(sequence)
                sequence.has_read = True
                batch = brought.reading.batch
                self._brought[batch] = brought
                tokens = reach * cache.spec.block_size
                return Held(tokens, tokens, batch, brought)
        return None

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
        now = self._cache.pool.now
        late = [
            (self._loading[batch], each)
            for batch, each in self._brought.items()
            if batch in self._loading and each.until <= now
        ]
        for _, brought in late:
            self._cache.shelves.give_up(brought.reading)
        return [sequence for sequence, _ in late]

    def settle(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Sequences whose state has come in go on; returns those to which it did not come whole."""
        over = self._cache.transfers.settle(plan.number, result.transfers, failed=result.failed)
        self._swap.settle(over)
        self._cache.shelves.settle(over)
        failed = []
        for batch in over:
            sequence, brought = self._loading.pop(batch, None), self._brought.pop(batch, None)
            if brought is not None:
                self._cache.receive(brought, None if sequence is None else sequence.tokens)
            if sequence is not None:
                sequence.loading = False
                if batch.failed:
                    failed.append(sequence)
        return failed

    def look_for_kept(self, sequence: Sequence) -> None:
        """How much of what it has from the cache, and wants kept, is kept already."""
        size, keep = self._cache.spec.block_size, sequence.request.keep
        if keep:
            # The block of the last token is hit although that token is computed again.
            hit = min(-(-(sequence.cached_tokens or 0) // size), keep[-1].tokens // size)
            if sequence.loading:
                # What is still to come from shelves is not kept.
                hit = min(hit, sequence.blocks.published)
            sequence.kept_before = self._cache.kept_tokens(sequence.blocks, hit)

    def keep(self, sequence: Sequence) -> None:
        """Keep the prefixes that its request wants kept, as far as they are computed."""
        keep = sequence.request.keep
        while len(sequence.kept_now) < len(keep) and keep[len(sequence.kept_now)].tokens <= sequence.computed:
            prefix = keep[len(sequence.kept_now)]
            sequence.kept_now.append(self._cache.keep(sequence.blocks, prefix.tokens, prefix.seconds))

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
