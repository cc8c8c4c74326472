"""Angles of positions beyond a table: all of them have their place in memory, and those that steps need are there."""

import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

# Positions whose angles are made together: 1 MiB for a head of 128 columns.
PAGE = 1024
# Pages that stay, unless a step needs more.
MOST_PAGES = 32
# Python's mmap names it from 3.12 on.
_MAP_NORESERVE = 0x4000


class FarAngles:
    """A table that takes memory for a part of its positions, however far a stream goes.

    The system gives memory to what is written, and takes it back from pages that no step has needed for the longest.

    Args:
        positions: that it has places for, in whole pages.
        head_dim: columns of a head.
        angles: what `RopeTable` has of the positions from the first up to the second.

    Attributes:
        entries: float32 [positions, 2, head_dim]: what `reach` was told of is as in `RopeTable`, the rest is of no use.
    """

    def __init__(self, positions: int, head_dim: int, angles: Callable[[int, int], Tensor]) -> None:
        self._angles = angles
        self._page_bytes = PAGE * 2 * head_dim * 4
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, positions // PAGE * self._page_bytes, flags=flags)
        self.entries = torch.frombuffer(self._memory, dtype=torch.float32).view(-1, 2, head_dim)
        self._there: OrderedDict[int, None] = OrderedDict()

    def reach(self, spans: Iterable[tuple[int, int]]) -> None:
        """Have the angles of some positions, each span from the first up to the second, until the next call."""
        needed = {page for first, end in spans for page in range(first // PAGE, -(-end // PAGE))}
        for page in sorted(needed):
            if page not in self._there:
                self.entries[page * PAGE : (page + 1) * PAGE] = self._angles(page * PAGE, (page + 1) * PAGE)
            self._there[page] = None
            self._there.move_to_end(page)
        while len(self._there) > max(MOST_PAGES, len(needed)):
            oldest, _ = self._there.popitem(last=False)
            self._memory.madvise(mmap.MADV_DONTNEED, oldest * self._page_bytes, self._page_bytes)
