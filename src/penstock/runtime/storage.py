"""KV storage: the tensors behind the blocks."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.core.errors import InsufficientMemory
from penstock.core.kv import KVSpec
from penstock.core.plan import BlockCopy, BlockSwap
from penstock.kernels.dispatch import KVLayout
from penstock.runtime.ahead import Ahead

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


# Kernels read lines of this many bytes; one that crosses two costs twice.
_ALIGNMENT = 64


def _lazy_zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
    # numpy asks for zeroed pages, which cost nothing until they are touched; torch.zeros would write them all.
    size = math.prod(shape) * TORCH_DTYPES[dtype].itemsize
    memory = torch.from_numpy(np.zeros(size + _ALIGNMENT, np.uint8))
    start = -memory.data_ptr() % _ALIGNMENT
    return memory[start : start + size].view(TORCH_DTYPES[dtype]).view(shape)


def place_in_groups(spec: KVSpec) -> dict[int, tuple[int, int]]:
    """The group of each layer, and its place in it."""
    return {
        layer: (group, place) for group, members in enumerate(spec.groups) for place, layer in enumerate(members.layers)
    }


class KVStorage:
    """Planes of all blocks, for each plane of a layer one array: [layers, num_blocks · block_size, kv_heads, head_dim].

    Scales of bytes have planes of their own, [num_blocks · block_size, kv_heads, …].

    Whatever the `layout` within a block, its memory is one piece of each plane, so that blocks are copied and cleared
    without a look at it. Layers at the same place of different groups are one layer here, since groups share block ids.
    Memory is zeroed lazily by the operating system, so a pool costs what has been used of it, and a little more: about
    256 MiB once there was time for it.
    """

    def __init__(self, spec: KVSpec, num_blocks: int, layout: KVLayout = "slots") -> None:
        self.spec = spec
        self.layout = layout
        self.block_size = spec.block_size
        self._group_of = place_in_groups(spec)
        slots = num_blocks * spec.block_size
        try:
            arrays = [_lazy_zeros((spec.layers_per_block, slots, *plane.shape), plane.dtype) for plane in spec.planes]
        except MemoryError as error:
            raise InsufficientMemory(
                f"The KV pool of {num_blocks * spec.block_bytes / 2**30:.2f} GiB could not be allocated; "
                "lower --kv-cache-memory."
            ) from error
        self._planes = list(zip(*arrays, strict=True))
        # Each as [layers, num_blocks, bytes of a block]: numpy moves whole blocks several times faster than torch.
        self._memories = [
            array.view(spec.layers_per_block, num_blocks, -1).view(torch.uint8).numpy() for array in arrays
        ]
        self._ahead = Ahead([layer for memory in self._memories for layer in memory])

    def planes(self, layer: int) -> tuple[Tensor, ...]:
        """Key and value slots of one layer of the model, and their scales where they are bytes."""
        return self._planes[self._group_of[layer][1]]

    def group_of(self, layer: int) -> int:
        """The KV group whose block tables the layer uses."""
        return self._group_of[layer][0]

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zero blocks of all layers, so that nothing of what another sequence left in them can be read.

        They are about to be used, so that memory behind them is made ready.
        """
        for memory in self._memories:
            memory[:, blocks] = 0
        self._ahead.reached(max(blocks, default=0))

    def use_idle_time(self) -> None:
        """Have more memory made ready, beside whatever comes."""
        self._ahead.use_idle_time()

    def swap(self, out: Sequence[BlockSwap], back: Sequence[BlockSwap]) -> None:
        """There is no other memory to swap to."""
        raise RuntimeError("blocks are swapped, and the pool is in the processor's memory already")

    def copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        """Copy whole blocks of all layers, in order."""
        if not copies:
            return
        sources, targets = [copy.source for copy in copies], [copy.target for copy in copies]
        if set(sources).isdisjoint(targets):
            for memory in self._memories:
                memory[:, targets] = memory[:, sources]
            return
        for source, target in zip(sources, targets, strict=True):
            for memory in self._memories:
                memory[:, target] = memory[:, source]
