"""Measures what this machine reaches at most, with the native kernels' own threads and instructions."""

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from penstock.core.ceilings import TYPES, Ceilings
from penstock.kernels.cpu.native import native

# More than the caches of most processors hold.
_READ_BYTES = 256 << 20
# For each figure; all together take less than half a second, most of it for memory to read.
_SECONDS = 0.03
# Calls of about a millisecond: where others run too, some are not disturbed. All pieces in turn fill any cache.
_PIECE_BYTES = 32 << 20
_ROUNDS = 50_000


def measure_ceilings(memory: Tensor | None = None, seconds: float = _SECONDS) -> Ceilings:
    """Memory reads and arithmetic in registers on all of the kernels' threads, each for `seconds`.

    `memory`, uint8 of whole MiB, is what is read; without any, some is made. `native.set_threads` says on how many
    threads. Needs the native kernels.
    """
    if memory is None:
        memory = torch.zeros(_READ_BYTES, dtype=torch.uint8).fill_(1)
    arithmetic = {}
    for name in TYPES:
        operations = native.compute(name, _ROUNDS)
        arithmetic[name] = operations / _best_seconds(lambda: native.compute(name, _ROUNDS), seconds) / 1e9  # noqa: B023
    pieces = [piece for piece in memory.split(_PIECE_BYTES) if len(piece) == len(memory[:_PIECE_BYTES])]
    turn = itertools.cycle(pieces)
    read = len(pieces[0]) / _best_seconds(lambda: native.read_memory(next(turn)), seconds) / 1e9
    return Ceilings(read, arithmetic)


def _best_seconds(call: Callable[[], object], seconds: float) -> float:
    """The shortest time of a call over at least `seconds` and three calls, after one that warms up.

    A ceiling is what is reached undisturbed; whatever else runs on the machine only takes away from it.
    """
    call()
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best
