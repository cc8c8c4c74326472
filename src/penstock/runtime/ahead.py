"""Memory that is about to be used, made ready beside the computation.

The KV pool's memory is the operating system's until it is first touched. That costs 0.2 ms for a huge page, and in a
virtual machine whose host has to find the memory too, 4 ms. What comes next is therefore asked for on a thread of its
own.
"""

import ctypes
import mmap
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

# A huge page: what the operating system gives at most at a time.
HUGE_PAGE_BYTES = 2 << 20
# Bytes that are made ready together.
PIECE_BYTES = 8 << 20
# Bytes that are made ready behind the rows in use while no request waits.
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
    # One by one: a thread that needs other memory meanwhile waits for one of them at most.
    for address in range(start, stop, HUGE_PAGE_BYTES):
        length = min(HUGE_PAGE_BYTES, stop - address)
        if madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), POPULATE_WRITE):
            return False
    return True


class Ahead:
    """Keeps half a piece to one and a half ready behind the rows in use, which come in ascending order.

    In idle time there will be more, so that later, when every processor computes, there is less else to do. Where the
    operating system does not know how, they become ready when they are touched.
    """

    def __init__(self, array: NDArray[np.uint8]) -> None:
        """`array`: [rows, bytes], in one piece."""
        self._array = array
        self._rows = len(array)
        # Rows at a time.
        self._piece = max(2, PIECE_BYTES // array.strides[0])
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
        end = self._used and self._used + IDLE_BYTES // self._array.strides[0]
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
        """On the helper's thread. What can wait is left once a request has come."""
        return (self._idle or not can_wait) and populate(self._array, first, end)
