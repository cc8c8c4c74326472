"""Memory that is about to be used, made ready beside the computation.

The KV pool's memory is the operating system's until it is first touched. That costs 0.2 ms for a huge page, and in a
virtual machine whose host has to find the memory too, 4 ms; and all layers come to the end of their pages at about the
same time, so that one step would wait for all of it. What comes next is therefore asked for on a thread of its own.
"""

import ctypes
import mmap
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

# Bytes that are made ready at a time, in each array: a huge page.
PIECE_BYTES = 2 << 20
# Bytes that are made ready behind the rows in use while no request waits, in all arrays together.
IDLE_BYTES = 256 << 20
PAGE_BYTES = mmap.PAGESIZE
# An advice of madvise(2), for Linux 5.14 and later.
POPULATE_WRITE = 23


def populate(array: NDArray[np.uint8], first: int, end: int) -> bool:
    """Let the operating system give the memory of the rows [first, end), as it is; whether it knows how to.

    Args:
        array: in one piece; its rows are contiguous.
    """
    if sys.platform != "linux":
        return False
    begin, size = array.ctypes.data, array.strides[0]
    start, stop = begin + first * size, begin + end * size
    start -= start % PAGE_BYTES
    madvise = ctypes.CDLL(None).madvise
    # By pieces: a thread that needs other memory meanwhile waits for one of them at most.
    for address in range(start, stop, PIECE_BYTES):
        length = min(PIECE_BYTES, stop - address)
        if madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), POPULATE_WRITE):
            return False
    return True


class Ahead:
    """Keeps half a piece to one and a half of each array ready behind the rows in use, which come in ascending order.

    In idle time there will be more, so that later, when every processor computes, there is less else to do. Where the
    operating system does not know how, they become ready when they are touched.
    """

    def __init__(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        """`arrays`: [rows, bytes] each, in one piece, with the same number of rows."""
        self._arrays = arrays
        self._rows = len(arrays[0])
        # Rows at a time.
        self._piece = max(2, PIECE_BYTES // max(array.strides[0] for array in arrays))
        # Rows below this one are ready, or will soon be. What is smaller than a piece is not worth a thread.
        self._ready = 0 if self._rows > self._piece else self._rows
        self._helper: ThreadPoolExecutor | None = None
        self._newest: Future[bool] | None = None
        # Rows below this one have been used.
        self._used = 0
        # In idle time, while no request waits: the first rows of pieces, and what becomes of them.
        self._idle = False
        self._pieces: list[tuple[int, Future[bool]]] = []

    def reached(self, row: int) -> None:
        """Rows up to this one are used now, and so there is no time for what can wait."""
        self._used = max(self._used, row + 1)
        self._idle = False
        while self._pieces:
            first, piece = self._pieces.pop()
            if not piece.cancel() and piece.done() and piece.result():
                self._pieces.clear()
            else:
                self._ready = first
        if row + self._piece // 2 < self._ready or self._ready == self._rows:
            return
        if self._newest is not None and self._newest.done() and not self._newest.result():
            self._ready = self._rows
            return
        self._newest = self._begin(max(row + 1, self._ready))

    def use_idle_time(self) -> None:
        """Make more ready until rows are used again; nothing where none ever were."""
        end = self._used and self._used + IDLE_BYTES // sum(array.strides[0] for array in self._arrays)
        self._idle = True
        while self._ready < min(end, self._rows):
            first = self._ready
            self._pieces.append((first, self._begin(first, can_wait=True)))

    def _begin(self, first: int, *, can_wait: bool = False) -> Future[bool]:
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "kv-pages")
        self._ready = min(self._rows, first + self._piece)
        return self._helper.submit(self._populate, first, self._ready, can_wait)

    def _populate(self, first: int, end: int, can_wait: bool) -> bool:
        """On the helper's thread. What can wait stops between two arrays once a request has come."""
        return all((self._idle or not can_wait) and populate(array, first, end) for array in self._arrays)
