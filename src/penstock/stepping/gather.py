"""Gathers the inputs of a step from its plan: a ragged batch with single-token rows first."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from penstock.core.plan import RowPlan
from penstock.kernels.batch import NOTHING_SHARED, StepBatch
from penstock.stepping.bounded import Bounds, bounds_of
from penstock.stepping.tables import BlockTables


class Counted(Protocol):
    """A row of a step."""

    @property
    def count(self) -> int:
        """How many positions it has."""


Row = TypeVar("Row", bound=Counted)


def order_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of one token first, each kind in the plan's order: attention treats the two kinds differently."""
    longer = [row for row in rows if row.count > 1]
    return [row for row in rows if row.count == 1] + longer if longer else list(rows)


def _tensor(numbers: list[int]) -> Tensor:
    # numpy reads a list several times faster than torch.
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _logit_rows(rows: Sequence[RowPlan], ends: Sequence[int]) -> list[int]:
    """Indices of the tokens whose output is wanted: of each row those that it scores, then its last if it samples.

    Of a row that is pooled they are those that go into its vector; of one with drafts, all that may be followed by
    another token.
    """
    if not any(row.scored[1] or row.pooled[1] or row.draft_depth for row in rows):
        return [end - 1 for row, end in zip(rows, ends, strict=True) if row.samples]
    wanted: list[int] = []
    for row, end in zip(rows, ends, strict=True):
        origin = end - row.count - row.start
        for first, last in (row.scored, row.pooled):
            wanted += range(origin + first, origin + last)
        if row.samples:
            wanted += range(end - 1 - row.draft_depth, end)
    return wanted


def num_logits(row: RowPlan) -> int:
    """How many of the row's tokens have logits, where it is not pooled."""
    return row.scored[1] - row.scored[0] + (1 + row.draft_depth if row.samples else 0)


def gather_batch(
    rows: Sequence[RowPlan],
    tokens: list[int],
    table_rows: list[int],
    tables: BlockTables,
    groups: Sequence[int],
    further: int = 0,
    shared: Sequence[int] = (),
    sources: Sequence[int] = (),
) -> StepBatch:
    """The batch of `rows`, which are ordered, with their `tokens` in one list and their rows of the block tables.

    `groups` are those of the tables that the model uses, in its own order. The batch's tables reach `further` tokens
    behind the longest context. `shared` and `sources` are as in the batch.
    """
    counts = [row.count for row in rows]
    wanted = _logit_rows(rows, list(itertools.accumulate(counts)))
    starts = [row.start for row in rows]
    return make_batch(
        starts=starts,
        counts=counts,
        tokens=tokens,
        logit_rows=wanted,
        table_rows=table_rows,
        tables=tables,
        groups=groups,
        further=further,
        shared=shared,
        bounds=bounds_of(rows, tables, groups),
        sources=sources,
    )


def gather_sources(
    sources: Sequence[Sequence[int]], table_rows: Sequence[int], tables: BlockTables, groups: Sequence[int]
) -> StepBatch:
    """The batch in which an encoder reads `sources`, whose slots are those of these rows; nothing of it is wanted."""
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]) > 1)
    return make_batch(
        starts=[0] * len(order),
        counts=[len(sources[place]) for place in order],
        tokens=[token for place in order for token in sources[place]],
        logit_rows=[],
        table_rows=[table_rows[place] for place in order],
        tables=tables,
        groups=groups,
    )


def make_batch(
    starts: Sequence[int],
    counts: list[int],
    tokens: list[int],
    logit_rows: list[int],
    table_rows: list[int],
    tables: BlockTables,
    groups: Sequence[int],
    further: int = 0,
    shared: Sequence[int] = (),
    bounds: Bounds | None = None,
    sources: Sequence[int] = (),
) -> StepBatch:
    """The same for rows of `counts` positions from `starts` on; `logit_rows` are tokens whose output is wanted."""
    contexts = [start + count for start, count in zip(starts, counts, strict=True)]
    num_decodes = counts.count(1)
    if num_decodes == len(counts):
        positions = np.array(starts, dtype=np.int64)
    else:
        positions = np.concatenate([np.arange(start, end) for start, end in zip(starts, contexts, strict=True)])
    row_array = np.array(table_rows, dtype=np.int64)
    longest = max(contexts) if bounds is None else bounds.longest(contexts)
    width = -(-(longest + further) // tables.block_size)
    if sources:
        of_sources = -(-max(sources) // tables.block_size)
        widths = [of_sources if tables.sees_source(group) else width for group in groups]
    else:
        widths = [width] * len(groups)
    found = tuple(tables.rows_of(group, row_array, each) for group, each in zip(groups, widths, strict=True))
    return StepBatch(
        token_ids=_tensor(tokens),
        positions=torch.from_numpy(positions),
        query_lengths=counts,
        context_lengths=contexts,
        num_decodes=num_decodes,
        logit_rows=_tensor(logit_rows),
        block_tables=tuple(map(torch.from_numpy, found)),
        block_size=tables.block_size,
        shared=_tensor(list(shared)) if shared else NOTHING_SHARED,
        dropped=() if bounds is None else bounds.dropped,
        weighing=None if bounds is None else bounds.weighing(found),
        sources=list(sources),
    )


def with_seen(batch: StepBatch, unseen: Sequence[int]) -> StepBatch:
    """The batch where no token sees the last tokens of each row: `unseen` has how many these are."""
    if not any(unseen):
        return batch
    return replace(
        batch, seen=_tensor([length - less for length, less in zip(batch.query_lengths, unseen, strict=True)])
    )


def with_types(batch: StepBatch, seconds: Sequence[int]) -> StepBatch:
    """The batch with types of tokens; each row's second text begins at its position in `seconds`, 0: it has none."""
    if not any(seconds):
        return batch
    begins = np.repeat([second or np.iinfo(np.int64).max for second in seconds], batch.query_lengths)
    return replace(batch, types=torch.from_numpy((batch.positions.numpy() >= begins).astype(np.int64)))


def following_batch(batch: StepBatch, rows: Sequence[int], tokens: list[int]) -> StepBatch:
    """The batch in which some `rows` of another go on, with one of `tokens` each."""
    chosen, count = _tensor(list(rows)), len(rows)
    ends = [batch.context_lengths[row] for row in rows]
    return StepBatch(
        token_ids=_tensor(tokens),
        positions=_tensor(ends),
        query_lengths=[1] * count,
        context_lengths=[end + 1 for end in ends],
        num_decodes=count,
        logit_rows=torch.arange(count),
        block_tables=tuple(table.index_select(0, chosen) for table in batch.block_tables),
        block_size=batch.block_size,
    )
