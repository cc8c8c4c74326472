"""Block tables of all rows as arrays."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.core.kv import GroupSpec
from penstock.core.plan import BlockUpdate

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class BlockTables:
    """Tables of block ids, [rows, slots], one for each block of a group's slots.

    Rows are added as needed and used again.

    Args:
        groups: those of the cache.
        block_size: tokens of a slot.
    """

    def __init__(self, groups: Sequence[GroupSpec], block_size: int) -> None:
        self.block_size = block_size
        ends = list(itertools.accumulate(group.width for group in groups))
        self._groups = groups
        self._parts = [range(end - group.width, end) for group, end in zip(groups, ends, strict=True)]
        self._tables: list[Int32] = [
            np.zeros((16, 16), dtype=np.int32) for _ in range(sum(group.width for group in groups))
        ]
        self._rows = 16
        self._free: list[int] = list(range(15, -1, -1))

    @property
    def num_tables(self) -> int:
        """How many tables a row has."""
        return len(self._tables)

    @property
    def num_groups(self) -> int:
        """How many groups they are of."""
        return len(self._groups)

    def group_of(self, table: int) -> int:
        """The group of a table."""
        return next(group for group, parts in enumerate(self._parts) if table in parts)

    def parts_of(self, group: int) -> range:
        """The tables of a group."""
        return self._parts[group]

    def sees_source(self, table: int) -> bool:
        """Whether what a table has is of rows' sources."""
        return self._groups[self.group_of(table)].sees.source

    def fresh(self, change: BlockUpdate, start: int, dropped: Sequence[int] = (), encodes: int = 0) -> Sequence[int]:
        """The blocks of a change in which nothing of a row's first `start` positions is, or of its source.

        `dropped` and `encodes` are as in the row.
        """
        group = self._groups[change.group]
        if group.sees.source:
            return change.blocks if encodes else ()
        if group.record_interval is not None:
            return () if start else change.blocks
        before = start - dropped[change.group] if dropped else start
        return change.blocks[max(0, -(-before // self.block_size) - change.first) * group.width :]

    def open_row(self) -> int:
        """A row that no sequence uses."""
        if not self._free:
            rows = self._rows
            self._tables = [np.concatenate((table, np.zeros_like(table))) for table in self._tables]
            self._free = list(range(2 * rows - 1, rows - 1, -1))
            self._rows *= 2
        row = self._free.pop()
        for table in self._tables:
            table[row] = 0
        return row

    def close_row(self, row: int) -> None:
        """Give a row back, for another sequence."""
        self._free.append(row)

    def update(self, row: int, updates: tuple[BlockUpdate, ...]) -> None:
        """Apply a plan's changes to one row.

        Entries that were released before they were ever sent come as -1 and are kept as 0; those that were sent keep
        their block. Operations attend to neither.
        """
        for change in updates:
            parts = self._parts[change.group]
            for part, table in enumerate(parts):
                blocks = change.blocks[part :: len(parts)] if len(parts) > 1 else change.blocks
                self._set(table, row, change.first, blocks)

    def _set(self, number: int, row: int, first: int, blocks: Sequence[int]) -> None:
        table, end = self._tables[number], first + len(blocks)
        if end > table.shape[1]:
            width = max(end, 2 * table.shape[1])
            self._tables[number] = table = np.pad(table, ((0, 0), (0, width - table.shape[1])))
        np.maximum(blocks, 0, out=table[row, first:end], casting="unsafe")

    def branch(self, row: int, origin: int, first: int, blocks: Sequence[list[int]]) -> None:
        """Make one row like another, but for `blocks` of each table from index `first` on."""
        for table, own in zip(self._tables, blocks, strict=True):
            table[row, :first] = table[origin, :first]
            table[row, first : first + len(own)] = own

    def rows_of(self, number: int, rows: Int64, blocks: int) -> Int32:
        """The first `blocks` entries of `rows` in one of the tables, [len(rows), blocks]."""
        return self._tables[number][rows, :blocks]

    def row_of(self, number: int, row: int, blocks: int) -> Int32:
        """The first `blocks` entries of one row of a table, as they are until the next change."""
        return self._tables[number][row, :blocks]
