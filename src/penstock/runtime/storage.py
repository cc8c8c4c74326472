"""KV storage: the memory behind the blocks."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.errors import InsufficientMemory
from penstock.core.kv import KVSpec, Piece
from penstock.core.layout import ALIGNMENT
from penstock.kernels.dispatch import KVLayout
from penstock.runtime.ahead import Ahead
from penstock.stepping.storage import Pairs, Used

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


def _lazy_zeros(size: int) -> Tensor:
    # numpy asks for zeroed pages, which cost nothing until they are touched; torch.zeros would write them all.
    memory = torch.from_numpy(np.zeros(size + ALIGNMENT, np.uint8))
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]


def planes_in(memory: Tensor, spec: KVSpec, layer: int) -> Mapping[str, Tensor]:
    """The planes of a layer in the pool's memory, uint8 [num_blocks, block_bytes], as views of it.

    A plane for tokens is [num_blocks, block_size, …], one for blocks [num_blocks, …].
    """
    return {piece.plane.name: _plane(memory, spec, piece) for piece in spec.pieces[layer] if not piece.rows}


def _plane(memory: Tensor, spec: KVSpec, piece: Piece) -> Tensor:
    plane, dtype = piece.plane, TORCH_DTYPES[piece.plane.dtype]
    shape = (spec.block_size, *plane.shape) if plane.granularity == "token" else plane.shape
    values = memory.view(-1)[piece.offset :].view(dtype)
    # A view would forget how far it is from block to block where there is one.
    strides = (spec.block_bytes // dtype.itemsize, *torch.empty(shape, device="meta").stride())
    return values.as_strided((len(memory), *shape), strides)


class KVStorage:
    """All blocks in one piece of memory, [num_blocks, block_bytes], so that a block is copied without a look at it.

    Whatever the `layout` of a plane within a block, it takes as many bytes. Memory is zeroed lazily by the operating
    system, so a pool costs what has been used of it, and a little more: about 256 MiB once there was time for it.
    """

    def __init__(self, spec: KVSpec, num_blocks: int, layout: KVLayout = "slots") -> None:
        self.spec = spec
        self.layout = layout
        try:
            memory = _lazy_zeros(num_blocks * spec.block_bytes)
        except MemoryError as error:
            raise InsufficientMemory(
                f"The KV pool of {num_blocks * spec.block_bytes / 2**30:.2f} GiB could not be allocated; "
                "lower --kv-cache-memory."
            ) from error
        self._memory = memory.view(num_blocks, spec.block_bytes)
        # numpy moves whole blocks several times faster than torch.
        self._blocks = self._memory.numpy()
        self._ahead = Ahead(self._blocks)

    def planes(self, layer: int) -> Mapping[str, Tensor]:
        """Keys and values of one layer of the model, and their scales where they are bytes."""
        return planes_in(self._memory, self.spec, layer)

    def table_of(self, layer: int) -> int:
        """The block table that the layer uses."""
        return self.spec.table_of(layer)

    def clear_blocks(self, blocks: list[int]) -> None:
        """Zero blocks, so that nothing of what another sequence left in them can be read.

        They are about to be used, so that memory behind them is made ready.
        """
        self._blocks[blocks] = 0
        self._ahead.reached(max(blocks, default=0))

    def use_idle_time(self) -> None:
        """Have more memory made ready, beside whatever comes."""
        self._ahead.use_idle_time()

    def slots(self) -> "KVStorage":
        """The pool, for those who copy slots out and in."""
        return self

    def copied(self, blocks: Sequence[int], used: Callable[[memoryview], None]) -> Used:
        """See `Slots`; it is used at once, so that no copy is needed."""
        # One block is looked at where it is.
        found: NDArray[np.uint8] = self._blocks[blocks[0]] if len(blocks) == 1 else self._blocks[list(blocks)].ravel()
        used(found.data)
        return Used()

    def begin_copies(self) -> None:
        """See `Slots`; they are over."""

    def put_slots(self, slots: Sequence[tuple[Sequence[int], bytes | bytearray]]) -> None:
        """See `Slots`."""
        for blocks, content in slots:
            for block, values in zip(blocks, np.frombuffer(content, np.uint8).reshape(len(blocks), -1), strict=True):
                self._blocks[block] = values

    def swap_out(self, pairs: Pairs) -> NoReturn:
        """There is no other memory to swap to."""
        raise RuntimeError("blocks are swapped, and the pool is in the processor's memory already")

    swap_in = swap_out

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy whole blocks, in order."""
        for source, target in pairs:
            self._blocks[target] = self._blocks[source]
