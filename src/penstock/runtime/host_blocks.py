"""KV blocks of a GPU's pool in the processor's memory: of preempted sequences, and of prefixes that it has lost."""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from penstock.configuration.swapping import STAGED_BYTES
from penstock.core.errors import InsufficientMemory
from penstock.runtime.device_memory import brought
from penstock.stepping.storage import Pairs, Took

_WORD = torch.int64


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
        self._pool = memory.view(_WORD)
        self._width = self._pool.shape[1]
        self._device = memory.device
        self._host = _memory(num_blocks, self._width)
        if self._device.type == "cuda":
            _pin(self._host)
            # The driver keeps pages that it was told of until it is told otherwise.
            weakref.finalize(self, _unpin, self._host.data_ptr())
        self._staged = max(1, staged_bytes // (self._width * _WORD.itemsize))

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks of the pool here."""
        for hosts, places in self._batches([target for _, target in pairs], [source for source, _ in pairs]):
            staged = self._pool.index_select(0, places)
            for first, end in _runs(hosts):
                self._host[hosts[first] : hosts[end - 1] + 1].copy_(staged[first:end], non_blocking=True)

    def swap_in(self, pairs: Pairs) -> Took:
        """Copy blocks from here into the pool."""
        took = _clock(self._device)
        for hosts, places in self._batches([source for source, _ in pairs], [target for _, target in pairs]):
            staged = torch.empty((len(hosts), self._width), dtype=_WORD, device=self._device)
            for first, end in _runs(hosts):
                staged[first:end].copy_(self._host[hosts[first] : hosts[end - 1] + 1], non_blocking=True)
            self._pool.index_copy_(0, places, staged)
        return took()

    def _batches(self, hosts: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """The host blocks that are staged at a time, and their places in the pool."""
        places = brought(list(blocks), self._device)
        for first in range(0, len(hosts), self._staged):
            yield hosts[first : first + self._staged], places[first : first + self._staged]


def _runs(hosts: Sequence[int]) -> Iterator[tuple[int, int]]:
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


def _memory(rows: int, words: int) -> Tensor:
    """Memory of this process; raises InsufficientMemory where there is not enough."""
    try:
        return torch.empty((rows, words), dtype=_WORD)
    except RuntimeError as error:
        raise _refusal(rows * words * _WORD.itemsize) from error


def _pin(memory: Tensor) -> None:
    """Let the device read and write it by itself. Torch's own pinned memory comes in powers of two."""
    if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) != 0:
        raise _refusal(memory.nbytes)


def _unpin(place: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(place)


def _refusal(size: int) -> InsufficientMemory:
    return InsufficientMemory(
        f"{size / 2**30:.2f} GiB for --swap-space and --kv-host-memory could not be had of the processor's memory, "
        "which has to stay in place; lower them, or free some."
    )
