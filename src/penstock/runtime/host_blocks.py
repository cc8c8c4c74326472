"""KV blocks of a GPU's pool in the processor's memory, where those of preempted sequences wait."""

import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from penstock.configuration.swapping import STAGED_BYTES
from penstock.core.errors import InsufficientMemory
from penstock.core.plan import BlockSwap
from penstock.runtime.device_memory import brought

_WORD = torch.int64


class HostBlocks:
    """`num_blocks` blocks, each in one piece, with everything that the pool has of it: keys, values and their scales.

    In the pool, a block is a piece of each plane of each layer. One or two kernels for each plane gather the pieces of
    many blocks in a staging area of the device, or put them in their places; between it and this memory, neighbours go
    in one copy. Only the device touches this memory, in the order of its stream: a copy reads what was computed before
    it, and what comes after sees it.

    Args:
        memories: the planes of the pool, each as bytes [layers, blocks, bytes of a block in a layer].
        staged_bytes: how much is on its way at a time.
    """

    def __init__(self, memories: Sequence[Tensor], num_blocks: int, staged_bytes: int = STAGED_BYTES) -> None:
        self._planes = [memory.view(_WORD) for memory in memories]
        self._widths = [plane.shape[0] * plane.shape[2] for plane in self._planes]
        self._device = memories[0].device
        self._host = _memory(num_blocks, sum(self._widths))
        if self._device.type == "cuda":
            _pin(self._host)
            # The driver keeps pages that it was told of until it is told otherwise.
            weakref.finalize(self, _unpin, self._host.data_ptr())
        self._staged = max(1, staged_bytes // (sum(self._widths) * _WORD.itemsize))

    def swap_out(self, swaps: Sequence[BlockSwap]) -> None:
        """Copy blocks of the pool here."""
        for some, places in self._batches(swaps):
            staged = torch.empty((len(some), sum(self._widths)), dtype=_WORD, device=self._device)
            for plane, part in self._parts(staged):
                part.copy_(plane.index_select(1, places))
            for first, end in _runs(some):
                host = some[first].host
                self._host[host : host + end - first].copy_(staged[first:end], non_blocking=True)

    def swap_in(self, swaps: Sequence[BlockSwap]) -> None:
        """Copy blocks from here into the pool."""
        for some, places in self._batches(swaps):
            staged = torch.empty((len(some), sum(self._widths)), dtype=_WORD, device=self._device)
            for first, end in _runs(some):
                host = some[first].host
                staged[first:end].copy_(self._host[host : host + end - first], non_blocking=True)
            for plane, part in self._parts(staged):
                plane.index_copy_(1, places, part)

    def _batches(self, swaps: Sequence[BlockSwap]) -> Iterator[tuple[Sequence[BlockSwap], Tensor]]:
        """The swaps that are staged at a time, and their places in the pool."""
        places = brought([swap.block for swap in swaps], self._device)
        for first in range(0, len(swaps), self._staged):
            yield swaps[first : first + self._staged], places[first : first + self._staged]

    def _parts(self, staged: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each plane, and its part of what is staged as [layers, blocks, words]."""
        parts = staged.split(self._widths, dim=1)
        for plane, part in zip(self._planes, parts, strict=True):
            yield plane, part.unflatten(1, (plane.shape[0], plane.shape[2])).transpose(0, 1)


def _runs(swaps: Sequence[BlockSwap]) -> Iterator[tuple[int, int]]:
    """Where neighbours in the processor's memory follow one another: (first, end) of each."""
    first = 0
    for place in range(1, len(swaps) + 1):
        if place == len(swaps) or swaps[place].host != swaps[place - 1].host + 1:
            yield first, place
            first = place


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
        f"--swap-space of {size / 2**30:.2f} GiB could not be had of the processor's memory, which has to stay in "
        "place; lower it, or free some."
    )
