"""KV blocks of a GPU's pool in the processor's memory: of preempted sequences, and of prefixes that it has lost."""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from penstock.configuration.swapping import STAGED_BYTES
from penstock.runtime.device_memory import brought
from penstock.runtime.pinned_memory import WORD, pinned
from penstock.stepping.storage import Pairs, Took


class HostBlocks:
    """`num_blocks` blocks, as the pool has them.

    Blocks of the pool lie anywhere: they are gathered in a staging area of the device, or put in their places from it;
    between it and this memory, neighbours go in one copy. Only the device touches this memory, in the order of its
    stream: a copy reads what was computed before it, and what comes after sees it.

    Args:
        memory: the pool's, uint8 [blocks, bytes of a block].
        staged_bytes: how much is on its way at a time.
    """

    def __init__(self, memory: Tensor, num_blocks: int, staged_bytes: int = STAGED_BYTES) -> None:
        self._pool = memory.view(WORD)
        self._width = self._pool.shape[1]
        self._device = memory.device
        self._host = pinned(num_blocks, self._width, self._device, "--swap-space and --kv-host-memory")
        self._staged = max(1, staged_bytes // (self._width * WORD.itemsize))

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks of the pool here."""
        for hosts, places in self._batches([target for _, target in pairs], [source for source, _ in pairs]):
            staged = self._pool.index_select(0, places)
            for first, end in runs(hosts):
                self._host[hosts[first] : hosts[end - 1] + 1].copy_(staged[first:end], non_blocking=True)

    def swap_in(self, pairs: Pairs) -> Took:
        """Copy blocks from here into the pool."""
        took = _clock(self._device)
        for hosts, places in self._batches([source for source, _ in pairs], [target for _, target in pairs]):
            staged = torch.empty((len(hosts), self._width), dtype=WORD, device=self._device)
            for first, end in runs(hosts):
                staged[first:end].copy_(self._host[hosts[first] : hosts[end - 1] + 1], non_blocking=True)
            self._pool.index_copy_(0, places, staged)
        return took()

    def _batches(self, hosts: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """The host blocks that are staged at a time, and their places in the pool."""
        places = brought(list(blocks), self._device)
        for first in range(0, len(hosts), self._staged):
            yield hosts[first : first + self._staged], places[first : first + self._staged]


def runs(hosts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where neighbours in the processor's memory follow one another: (first, end) of each."""
    first = 0
    for place in range(1, len(hosts) + 1):
        if place == len(hosts) or hosts[place] != hosts[place - 1] + 1:
            yield first, place
            first = place


def _clock(device: torch.device) -> Callable[[], Took]:
    """To be called when all has been begun that is timed; the device itself takes the time of what it does."""
    if device.type != "cuda":
        began = time.perf_counter()

        def over() -> Took:
            seconds = time.perf_counter() - began
            return lambda: seconds

        return over
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()

    def recorded() -> Took:
        last.record()

        def took() -> float:
            last.synchronize()
            return float(first.elapsed_time(last)) / 1e3

        return took

    return recorded
