"""Rows whose contexts are bounded: what was dropped of them, and how much attention they give to what is left."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.plan import Attended, RowPlan
from penstock.kernels.batch import StepBatch, Weighing
from penstock.stepping.tables import BlockTables, Int32, Int64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a step's rows.

    Attributes:
        dropped: as the batch has it.
        weighed: of each row, how many of its last tokens are asked.
    """

    dropped: tuple[Int64, ...]
    weighed: list[int]

    def longest(self, contexts: Sequence[int]) -> int:
        """Places of the row that has the most of them, by any table, where rows have these contexts."""
        found = np.array(contexts)
        return int(max((found - each).max() for each in self.dropped)) if self.dropped else max(contexts)

    def weighing(self, tables: Sequence[Int32]) -> Weighing | None:
        """Room for what is learnt, in the shapes of the step's block tables; None where nothing is asked."""
        if not any(self.weighed):
            return None
        return Weighing(self.weighed, tuple(np.zeros(table.shape, np.float32) for table in tables))


def bounds_of(rows: Sequence[RowPlan], tables: BlockTables, groups: Iterable[int]) -> Bounds | None:
    """None where no row is bounded. `groups` are those of the tables that the step uses, in its order."""
    if not any(row.dropped or row.weighed for row in rows):
        return None
    dropped: tuple[Int64, ...] = ()
    if any(row.dropped for row in rows):
        dropped = tuple(
            np.array([row.dropped[group] if row.dropped else 0 for row in rows], dtype=np.int64)
            for group in map(tables.group_of, groups)
        )
    return Bounds(dropped, [row.weighed for row in rows])


def attended(rows: Sequence[RowPlan], batch: StepBatch, tables: BlockTables) -> tuple[Attended, ...]:
    """What the step of `batch` has learnt of its rows' attention; its tables are all that there are."""
    if batch.weighing is None:
        return ()
    masses = batch.weighing.read()
    return tuple(
        Attended(row.sequence, [_of_group(row, index, group, masses, tables) for group in range(tables.num_groups)])
        for index, row in enumerate(rows)
        if row.weighed
    )


def _of_group(
    row: RowPlan, index: int, group: int, masses: Sequence[NDArray[np.float32]], tables: BlockTables
) -> list[float]:
    places = row.start + row.count - (row.dropped[group] if row.dropped else 0)
    slots = -(-places // tables.block_size)
    parts = [masses[part][index, :slots] for part in tables.parts_of(group)]
    found: list[float] = np.sum(parts, axis=0).tolist()
    return found
