"""Contexts that are bounded: slots are given up before a row takes more, and attention is told of behind it."""

from collections.abc import Iterable
from typing import Protocol

from penstock.cache.bounded import Bounded
from penstock.cache.held import SequenceBlocks
from penstock.cache.manager import KVCache
from penstock.core.plan import Attended, RowPlan
from penstock.core.request import Request
from penstock.scheduler.notes import Notes
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.step_builder import StepBuilder


class Charge(Protocol):
    """`WaitingQueue.charge`, for prompt tokens."""

    def __call__(self, sequence: Sequence, *, prompt: int) -> None:
        """Charge a sequence's tenant for this number of tokens."""


class Bounding:
    """Keeps sequences within what their policies let them hold; sinks that move are charged like a prompt's tokens."""

    def __init__(self, cache: KVCache, max_chunk: int, charge: Charge) -> None:
        self._cache = cache
        self._max_chunk = max_chunk
        self._charge = charge
        self._size = cache.spec.block_size
        self._groups = [number for number, group in enumerate(cache.spec.groups) if group.is_whole]

    def begin(self, request: Request) -> Bounded | None:
        """The bounds of a sequence that has nothing; None where it has no policy."""
        policy = request.kv_policy
        if policy is None:
            return None
        return Bounded(policy, self._groups, self._size, len(request.prompt_token_ids))

    def open(self, sequence: int, request: Request, bounded: Bounded | None) -> SequenceBlocks:
        """Empty tables for a sequence with these bounds."""
        standing, most, private = request.standing, None, False
        if bounded is not None:
            most, private = bounded.most, not bounded.cacheable
        return self._cache.open(
            sequence,
            standing.cache_salt,
            tenant=standing.tenant,
            weight=standing.weight,
            most=most,
            private=private,
            source=request.source,
        )

    def make_room(self, sequence: Sequence, count: int, step: StepBuilder, notes: Notes, left: int = 0) -> int:
        """Have a sequence give up slots before its next positions; how many of the next `count` can be computed.

        None can where its sinks are to move: the step gets a row for these, and `left` of its budget is for others.
        """
        bounded = sequence.bounded
        if bounded is None:
            return count
        start, tables = sequence.reserved, sequence.blocks.tables
        count = bounded.chunk(start, count)
        found: dict[int, list[int]] = {}
        for group in self._groups:
            wanted = -(-(start + count) // self._size) - tables[group].dropped
            found[group] = bounded.to_drop(group, len(tables[group].slots), start, wanted)
        if sequence.last_plan is not None and (bounded.follows_attention or bounded.sinks_left or any(found.values())):
            # What attention that plan's row gives is not known yet, and sinks are no source of tokens.
            return 0
        for group, indices in found.items():
            if indices:
                self._cache.drop(sequence.blocks, group, indices, until=None)
            bounded.gave_up(group, indices, tables[group].dropped)
        bounded.computed(start)
        if not bounded.sinks_left:
            return count
        self._add_sinks(sequence, bounded, step, notes, max(1, step.budget - left))
        return 0

    def _add_sinks(self, sequence: Sequence, bounded: Bounded, step: StepBuilder, notes: Notes, most: int) -> None:
        """A row for the sinks of a sequence whose window has gone on, or for the next `most` of them.

        They come right before the first position of its window, so that all positions are those in the cache: what
        they attend to, themselves, is as it was, and their keys are turned as far as the window has gone on (Xiao et
        al., Efficient Streaming Language Models with Attention Sinks, ICLR 2024, section 3.2). Their table entries are
        known, so that nothing is told of the others.
        """
        dropped = self.dropped(sequence)
        first = bounded.sinks - bounded.sinks_left
        count = min(bounded.sinks_left, most, self._max_chunk)
        step.add_again(
            sequence,
            RowPlan(
                sequence=sequence.id,
                start=max(dropped) + first,
                count=count,
                tokens=sequence.tokens[first : first + count],
                source=None,
                samples=(),
                blocks=(),
                dropped=dropped,
            ),
        )
        bounded.sinks_left -= count
        notes.again(sequence, max(dropped) + first, count)
        # Where a sequence lost its blocks, its tenant has been charged for all up to there.
        if sequence.reserved >= sequence.computed_once:
            self._charge(sequence, prompt=count)

    def dropped(self, sequence: Sequence) -> tuple[int, ...]:
        """For each group, positions without slots, as a row has them."""
        if sequence.bounded is None or not sequence.bounded.dropped:
            return ()
        return tuple(table.dropped * self._size for table in sequence.blocks.tables)

    def settle(self, rows: Iterable[RowPlan], attended: tuple[Attended, ...], known: dict[int, Sequence]) -> None:
        """A step has told what attention some of its rows gave; `known` are the sequences that have not ended."""
        weighed = {row.sequence: row for row in rows if row.weighed} if attended else {}
        for each in attended:
            sequence, row = known.get(each.sequence), weighed[each.sequence]
            # What was told of blocks that it has lost since is of no use.
            if sequence is None or sequence.bounded is None or sequence.computed != row.start + row.count:
                continue
            for group in self._groups:
                sequence.bounded.add(group, each.masses[group], row.weighed)
