"""The table of rows: what the executor keeps of each sequence, and what a step reads of it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from penstock.core.plan import Attended, BeginRow, RowPlan, StepPlan
from penstock.core.vectors import pooled
from penstock.kernels.batch import StepBatch
from penstock.runtime.pool import Pool
from penstock.sampling.row import RowState
from penstock.stepping.bounded import attended
from penstock.stepping.gather import gather_batch, gather_sources, with_seen, with_types
from penstock.stepping.storage import Blocks
from penstock.stepping.tables import BlockTables


@dataclass(slots=True)
class Row:
    """What the executor keeps of a sequence, from the plan that begins it to the plan that ends it.

    Attributes:
        table: its row of the block tables.
        tokens: its prompt, and what has come behind it.
        prompt: how many of them are the prompt.
        state: how its next tokens are chosen.
        pool: the sum for a sequence that becomes a vector; None where tokens are generated.
        source: what an encoder reads of it; nothing where there is none.
        unseen: how many of its last tokens no token sees.
        second: where its second text begins; 0: it has one.
    """

    table: int
    tokens: list[int]
    prompt: int
    state: RowState
    pool: Pool | None = None
    source: tuple[int, ...] = ()
    unseen: int = 0
    second: int = 0


class Carried(NamedTuple):
    """Tokens that a step yields in a device's memory.

    Attributes:
        plan: the step's number.
        places: where each sequence's is.
        tokens: as `StepBatch.carried` has them.
    """

    plan: int
    places: Mapping[int, int]
    tokens: Tensor


class RowTable:
    """The rows of all sequences, by sequence, and their block tables.

    Attributes:
        rows: those that have begun and not ended.
        pooled: the sequences of those that become vectors.
    """

    def __init__(
        self,
        tables: BlockTables,
        storages: Sequence[Blocks],
        begin_state: Callable[[BeginRow, Sequence[int]], RowState],
    ) -> None:
        """`storages` have the blocks of the tables; `begin_state` is as in `Choosing`."""
        self.rows: dict[int, Row] = {}
        self.pooled: set[int] = set()
        self._tables = tables
        self._groups = tuple(range(tables.num_tables))
        self._has_sources = any(map(tables.sees_source, self._groups))
        self._storages = tuple(storages)
        self._begin_state = begin_state
        # Sequences that have ended, or lost a step, before the plans were made that say so: what these compute is void.
        self._over: set[int] = set()

    def begin(self, begin: BeginRow) -> Row:
        """A row for a sequence that was not seen before."""
        tokens, source = list(begin.prompt_token_ids), begin.source
        if begin.forked_from is not None:
            # It forks in the step that computes the prompt's end, so that nothing has come yet.
            origin = self.rows[begin.forked_from]
            tokens, source = list(origin.tokens), origin.source
        row = Row(self._tables.open_row(), tokens, len(tokens), self._begin_state(begin, tokens), source=source)
        for token in begin.output:
            row.state.advance(token)
        row.tokens += begin.output
        if begin.pooling is not None:
            row.pool = Pool(begin.pooling, *pooled(begin.pooling, begin.pooled_from, len(tokens)))
            row.unseen = begin.unseen
            row.second = begin.second_from
            self.pooled.add(begin.sequence)
        self.rows[begin.sequence] = row
        return row

    def end(self, sequence: int) -> None:
        """Forget a sequence; also where the plan that should have begun it failed."""
        self._over.discard(sequence)
        self.pooled.discard(sequence)
        row = self.rows.pop(sequence, None)
        if row is not None:
            self._tables.close_row(row.table)

    def place(self, planned: Sequence[RowPlan]) -> None:
        """Take over what the plan says of the rows' block tables."""
        fresh: list[int] = []
        for row in planned:
            if row.blocks:
                self._tables.update(self.rows[row.sequence].table, row.blocks)
                for change in row.blocks:
                    fresh += self._tables.fresh(change, row.start, row.dropped, row.encodes)
        if fresh:
            # Attention hides what is behind a row's context by a weight of 0, and 0 · NaN is NaN: a request whose
            # values broke must not leave them to the next holder of its blocks.
            for storage in self._storages:
                storage.clear_blocks(fresh)

    def tables_of(self, planned: Sequence[RowPlan]) -> list[int]:
        """Each row's of the block tables."""
        rows = self.rows
        return [rows[row.sequence].table for row in planned]

    def gather(
        self, plans: Sequence[RowPlan], tables: list[int], carried: Carried | None = None, shared: Sequence[int] = ()
    ) -> StepBatch:
        """The batch of the step's rows, or some of them, which are ordered, with their rows of the block tables.

        Tokens that are not known here yet are among those that are `carried`; `shared` is as in the batch.
        """
        tokens: list[int] = []
        for planned in plans:
            tokens.extend(planned.tokens)
            if planned.source is None:
                continue
            if carried is not None and carried.plan == planned.source:
                tokens.append(-1 - carried.places[planned.sequence])
            else:
                tokens.append(self.rows[planned.sequence].tokens[-1])
        sources = [len(self.rows[planned.sequence].source) for planned in plans] if self._has_sources else []
        batch = gather_batch(plans, tokens, tables, self._tables, self._groups, shared=shared, sources=sources)
        if self.pooled:
            batch = with_seen(batch, [self.rows[planned.sequence].unseen for planned in plans])
            batch = with_types(batch, [self.rows[planned.sequence].second for planned in plans])
        return batch if carried is None or min(tokens) >= 0 else dataclasses.replace(batch, carried=carried.tokens)

    def gather_sources(self, plans: Sequence[RowPlan]) -> StepBatch | None:
        """The batch of the sources that these rows have encoded; None where all are."""
        rows = [self.rows[planned.sequence] for planned in plans if planned.encodes]
        if not rows:
            return None
        return gather_sources([row.source for row in rows], [row.table for row in rows], self._tables, self._groups)

    def attended(self, plans: Sequence[RowPlan], batch: StepBatch) -> tuple[Attended, ...]:
        """What a step that has been computed has learnt of its rows' attention."""
        return attended(plans, batch, self._tables)

    def one_token(self) -> StepBatch:
        """A token in a block that no sequence holds yet, for a step before there are sequences."""
        row = RowPlan(sequence=0, start=0, count=1, tokens=[0], source=None, samples=(0,), blocks=())
        return gather_batch([row], [0], [0], self._tables, self._groups, sources=[1] * self._has_sources)

    def one_token_source(self) -> StepBatch:
        """In the same way, a source of one token."""
        return gather_sources([(0,)], [0], self._tables, self._groups)

    # Rows whose end is known here before the plans know it.

    def is_void(self, sequence: int) -> bool:
        """Whether it has ended since the step was planned; of one that a plan has ended, there is no row any more."""
        return sequence in self._over or sequence not in self.rows

    def make_void(self, sequences: Iterable[int]) -> None:
        """What is planned for these, where they have a row, is void from now on."""
        self._over.update(sequence for sequence in sequences if sequence in self.rows)

    def without_void(self, plan: StepPlan) -> Sequence[RowPlan]:
        """The plan's rows that are still to be computed."""
        if not self._over:
            return plan.rows
        self.end_forks(plan)
        return [row for row in plan.rows if row.sequence not in self._over]

    def end_forks(self, plan: StepPlan) -> None:
        """What was to fork from a sequence whose prompt was not computed is void too; the scheduler ends it."""
        for row in plan.rows:
            if len(row.samples) > 1 and self.is_void(row.sequence):
                self.make_void(row.samples)
