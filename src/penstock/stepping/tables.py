"""Block tables of all rows as arrays."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.core.plan import BlockUpdate

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class BlockTables:
    """One table of block ids per KV group, [rows, blocks]; rows are added as needed and used again."""

    def __init__(self, num_groups: int, block_size: int) -> None:
        self.block_size = block_size
        self.num_groups = num_groups
        self._tables: list[Int32] = [np.zeros((16, 16), dtype=np.int32) for _ in range(num_groups)]
        self._free: list[int] = list(range(15, -1, -1))

    def open_row(self) -> int:
        """A row that no sequence uses."""
        if not self._free:
            rows = len(self._tables[0])
            self._tables = [np.concatenate((table, np.zeros_like(table))) for table in self._tables]
            self._free = list(range(2 * rows - 1, rows - 1, -1))
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
            end = change.first + len(change.blocks)
            table = self._tables[change.group]
            if end > table.shape[1]:
                width = max(end, 2 * table.shape[1])
                self._tables[change.group] = table = np.pad(table, ((0, 0), (0, width - table.shape[1])))
            np.maximum(change.blocks, 0, out=table[row, change.first : end], casting="unsafe")

    def branch(self, row: int, origin: int, first: int, blocks: Sequence[list[int]]) -> None:
        """Make one row like another, but for `blocks` of each group from index `first` on."""
        for table, own in zip(self._tables, blocks, strict=True):
            table[row, :first] = table[origin, :first]
            table[row, first : first + len(own)] = own

    def rows_of(self, group: int, rows: Int64, blocks: int) -> Int32:
        """The first `blocks` entries of `rows`, [len(rows), blocks]."""
        return self._tables[group][rows, :blocks]

    def row_of(self, group: int, row: int, blocks: int) -> Int32:
        """The first `blocks` entries of one row, as they are until the next change."""
        return self._tables[group][row, :blocks]
