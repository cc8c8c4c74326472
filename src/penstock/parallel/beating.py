"""A rank shows that it is not stopped, and how far it is, from its first moment on.

Nothing here imports torch, which takes a while.
"""

import mmap
import threading
import time
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.kernels.cpu.native import native
from penstock.kernels.progress import operations_done
from penstock.parallel.silence import LOOK_SECONDS


def begin_beating(memory: int, rank: int, size: int) -> None:
    """Have a thread show it again and again, whatever the process computes.

    `memory` is the descriptor of `places.create_memory`'s memory, and stays the caller's.
    """
    meeting, done = mapped(memory, size)
    threading.Thread(target=_beat, args=(native.Ranks(meeting, rank, size, 0.0), done[rank:]), daemon=True).start()


def mapped(memory: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Where ranks meet, and the operations that each had computed when it last showed that it is not stopped."""
    whole = np.frombuffer(mmap.mmap(memory, memory_bytes(size)), np.uint8)
    bytes_of_meeting = native.ranks_bytes(size)
    return whole[:bytes_of_meeting], whole[bytes_of_meeting:].view(np.uint64)


def memory_bytes(size: int) -> int:
    """Of the memory in which `size` ranks meet."""
    return int(native.ranks_bytes(size)) + size * np.dtype(np.uint64).itemsize


def _beat(ranks: "native.Ranks", done: NDArray[np.uint64]) -> NoReturn:
    while True:
        done[0] = operations_done()
        ranks.beat()
        time.sleep(LOOK_SECONDS / 2)
