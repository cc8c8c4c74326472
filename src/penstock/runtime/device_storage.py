"""The KV pool in a GPU's memory."""

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.core.errors import InsufficientMemory
from penstock.core.kv import KVSpec
from penstock.kernels.dispatch import KVLayout
from penstock.runtime.device_memory import brought
from penstock.runtime.device_slots import DeviceSlots
from penstock.runtime.host_blocks import HostBlocks
from penstock.runtime.storage import planes_in
from penstock.stepping.storage import Pairs, Took


class DeviceKVStorage:
    """All blocks as `KVStorage` has them, in slots, on a device.

    `host_blocks` more are in the processor's memory.
    """

    layout: KVLayout = "slots"

    def __init__(self, spec: KVSpec, num_blocks: int, device: torch.device, host_blocks: int = 0) -> None:
        self.spec = spec
        try:
            self._memory = torch.zeros((num_blocks, spec.block_bytes), dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise InsufficientMemory(
                f"The KV pool of {num_blocks * spec.block_bytes / 2**30:.2f} GiB could not be allocated on {device}; "
                "lower --kv-cache-memory."
            ) from error
        # Blocks begin and end at multiples of 8 bytes; byte by byte, they are filled and copied many times slower.
        self._words = self._memory.view(torch.int64)
        self._host = HostBlocks(self._memory, host_blocks) if host_blocks else None

    def planes(self, layer: int) -> Mapping[str, Tensor]:
        """Keys and values of one layer of the model, and their scales where they are bytes."""
        return planes_in(self._memory, self.spec, layer)

    def table_of(self, layer: int) -> int:
        """The block table that the layer uses."""
        return self.spec.table_of(layer)

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zero blocks, so that nothing of what another sequence left in them can be read."""
        self._words.index_fill_(0, brought(blocks, self._memory.device), 0)

    def use_idle_time(self) -> None:
        """There is nothing that could be done before it is needed."""

    def slots(self) -> DeviceSlots:
        """The pool, for those who copy slots out and in: memory for what is on its way is taken now."""
        return DeviceSlots(self._memory, max(group.width for group in self.spec.groups))

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks to blocks of the processor's memory."""
        self._beside().swap_out(pairs)

    def swap_in(self, pairs: Pairs) -> Took:
        """Copy blocks of the processor's memory to blocks of the pool."""
        return self._beside().swap_in(pairs)

    def _beside(self) -> HostBlocks:
        if self._host is None:
            raise RuntimeError("blocks are swapped, and none were asked for in the processor's memory")
        return self._host

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy whole blocks, in order."""
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        together = [(sources, targets)] if pairs else []
        # Of two copies to one block the last counts, and a device may carry out either last.
        if not set(sources).isdisjoint(targets) or len(set(targets)) < len(targets):
            together = [([source], [target]) for source, target in pairs]
        for some, others in together:
            places = brought([some, others], self._memory.device)
            self._words.index_copy_(0, places[1], self._words.index_select(0, places[0]))
