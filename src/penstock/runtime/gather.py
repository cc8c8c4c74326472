"""Gathers the inputs of a step from its plan: a ragged batch with single-token rows first."""

from collections.abc import Sequence

import numpy as np
import torch

from penstock.core.plan import RowPlan
from penstock.kernels.batch import GroupBatch, StepBatch
from penstock.runtime.tables import BlockTables, Int64


def order_rows(rows: Sequence[RowPlan]) -> list[RowPlan]:
    """Rows of one token first, each kind in the plan's order: attention treats the two kinds differently."""
    singles = [row for row in rows if row.count == 1]
    if len(singles) == len(rows):
        return singles
    return singles + [row for row in rows if row.count > 1]


def gather_batch(
    rows: Sequence[RowPlan], tokens: list[int], table_rows: list[int], tables: BlockTables, num_groups: int
) -> StepBatch:
    """The batch of `rows`, which are ordered, with their `tokens` in one list and their rows of the block tables."""
    counts = [row.count for row in rows]
    starts = np.fromiter((row.start for row in rows), np.int64, len(rows))
    count_array = np.fromiter(counts, np.int64, len(rows))
    row_array = np.fromiter(table_rows, np.int64, len(rows))
    num_decodes = sum(count == 1 for count in counts)
    ends = np.cumsum(count_array)
    if num_decodes == len(rows):
        positions, token_rows = starts, row_array
    else:
        positions = np.arange(len(tokens), dtype=np.int64) + np.repeat(starts - (ends - count_array), count_array)
        token_rows = np.repeat(row_array, count_array)
    contexts = starts + count_array
    width = int(-(-int(contexts.max()) // tables.block_size))
    groups = tuple(
        GroupBatch(
            slots=torch.from_numpy(tables.slots(group, token_rows, positions)),
            block_tables=torch.from_numpy(tables.rows_of(group, row_array, width)),
        )
        for group in range(num_groups)
    )
    return StepBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int64),
        positions=torch.from_numpy(positions),
        query_lengths=counts,
        context_lengths=contexts.tolist(),
        num_decodes=num_decodes,
        logit_rows=torch.from_numpy(_sampled_positions(rows, ends)),
        groups=groups,
        block_size=tables.block_size,
    )


def _sampled_positions(rows: Sequence[RowPlan], ends: Int64) -> Int64:
    sampled = np.fromiter((bool(row.samples) for row in rows), np.bool_, len(rows))
    positions: Int64 = ends[sampled] - 1
    return positions
