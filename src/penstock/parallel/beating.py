"""A rank shows that it is not stopped, from its first moment on: nothing here imports torch, which takes a while."""

import mmap
import threading
import time
from typing import NoReturn

import numpy as np

from penstock.kernels.cpu.native import native
from penstock.parallel.silence import LOOK_SECONDS


def begin_beating(memory: int, rank: int, size: int) -> None:
    """Have a thread show it again and again, whatever the process computes.

    `memory` is the descriptor of `shared.create_memory`'s memory, and stays the caller's.
    """
    mapped = np.frombuffer(mmap.mmap(memory, native.ranks_bytes(size)), np.uint8)
    threading.Thread(target=_beat, args=(native.Ranks(mapped, rank, size, 0.0),), daemon=True).start()


def _beat(ranks: "native.Ranks") -> NoReturn:
    while True:
        ranks.beat()
        time.sleep(LOOK_SECONDS / 2)
