"""The KV pool in a GPU's memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.core.errors import InsufficientMemory
from penstock.core.kv import KVSpec
from penstock.core.plan import BlockCopy, BlockSwap
from penstock.kernels.dispatch import KVLayout
from penstock.runtime.device_memory import brought
from penstock.runtime.host_blocks import HostBlocks
from penstock.runtime.storage import TORCH_DTYPES, place_in_groups


class DeviceKVStorage:
    """Planes of all blocks as `KVStorage` has them, in slots, on a device.

    `swap_blocks` more are in the processor's memory.
    """

    layout: KVLayout = "slots"

    def __init__(self, spec: KVSpec, num_blocks: int, device: torch.device, swap_blocks: int = 0) -> None:
        self.spec, self.block_size = spec, spec.block_size
        self._group_of = place_in_groups(spec)
        slots = num_blocks * spec.block_size
        try:
            arrays = [
                torch.zeros(
                    (spec.layers_per_block, slots, *plane.shape), dtype=TORCH_DTYPES[plane.dtype], device=device
                )
                for plane in spec.planes
            ]
        except torch.OutOfMemoryError as error:
            raise InsufficientMemory(
                f"The KV pool of {num_blocks * spec.block_bytes / 2**30:.2f} GiB could not be allocated on {device}; "
                "lower --kv-cache-memory."
            ) from error
        self._planes = list(zip(*arrays, strict=True))
        # Each as [layers, num_blocks, bytes of a block].
        self._memories = [
            array.view(torch.uint8).view(spec.layers_per_block, num_blocks, -1) for array in arrays
        ]  # fmt: skip
        self._host = HostBlocks(self._memories, swap_blocks) if swap_blocks else None

    def planes(self, layer: int) -> tuple[Tensor, ...]:
        """Key and value slots of one layer of the model, and their scales where they are bytes."""
        return self._planes[self._group_of[layer][1]]

    def group_of(self, layer: int) -> int:
        """The KV group whose block tables the layer uses."""
        return self._group_of[layer][0]

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zero blocks of all layers, so that nothing of what another sequence left in them can be read."""
        for memory in self._memories:
            memory.index_fill_(1, brought(blocks, memory.device), 0)

    def use_idle_time(self) -> None:
        """There is nothing that could be done before it is needed."""

    def swap(self, out: Sequence[BlockSwap], back: Sequence[BlockSwap]) -> None:
        """Copy blocks to the processor's memory, then others, or the same, from there."""
        if self._host is None:
            raise RuntimeError("blocks are swapped, and none were asked for in the processor's memory")
        self._host.swap_out(out)
        self._host.swap_in(back)

    def copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        """Copy whole blocks of all layers, in order."""
        sources, targets = [copy.source for copy in copies], [copy.target for copy in copies]
        if set(sources).isdisjoint(targets):
            pairs = [(sources, targets)] if copies else []
        else:
            pairs = [([source], [target]) for source, target in zip(sources, targets, strict=True)]
        for memory in self._memories:
            for some, others in pairs:
                places = brought([some, others], memory.device)
                memory.index_copy_(1, places[1], memory.index_select(1, places[0]))
