"""Slots of a GPU's pool on their way to a disk or a store, and from there: through memory that the GPU writes itself.

What leaves is gathered behind the steps so far, and copied beside those that come, into rows of the processor's memory;
there it stays until it is encrypted, on another thread. What comes is copied beside the steps too, and put into its
places behind those that are under way. No other thread than the one that computes asks the GPU for anything: it could
be recording a graph, which others must not disturb.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import cycle

import torch
from torch import Tensor

from penstock.configuration.swapping import STAGED_BYTES
from penstock.runtime.device_memory import brought
from penstock.runtime.host_blocks import runs
from penstock.runtime.pinned_memory import WORD, pinned
from penstock.runtime.queues import Mark, Queues, queues_of

# Of the processor's memory, for what has left the pool and is not used yet.
LEAVING_BYTES = 256 << 20
_OPTIONS = "--kv-disk, --kv-store and --role"


class _Area:
    """A part of the device's memory for blocks on their way, used again and again.

    Attributes:
        blocks: int64 [blocks at a time, words of a block].
        copied: the newest copy between it and the processor's memory; None: there was none.
        used: when the steps' queue has used it, or what its memory was before, for the last time.
    """

    def __init__(self, blocks: int, words: int, device: torch.device, queues: Queues) -> None:
        self.blocks = torch.empty((blocks, words), dtype=WORD, device=device)
        self.copied: Mark | None = None
        self.used = queues.computing.mark()


class _Rows:
    """Rows of the processor's memory, each for a block, which are taken and given back on any thread."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self._bytes = memory.numpy().view("uint8")
        self._lock = threading.Lock()
        self._free = list(range(len(memory) - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Rows that hold nothing."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Rows of this number; None where there are too few."""
        with self._lock:
            if count > len(self._free):
                return None
            return [self._free.pop() for _ in range(count)]

    def give_back(self, rows: Sequence[int]) -> None:
        """They hold nothing any more."""
        with self._lock:
            self._free += reversed(rows)

    def content(self, rows: Sequence[int]) -> memoryview:
        """Their bytes, one behind the other; those of one row are looked at where they are."""
        return (self._bytes[rows[0]] if len(rows) == 1 else self._bytes[list(rows)].ravel()).data


class _Leaving:
    """A slot on its way: see `Copied`. Before its copy has begun, `sent` is None."""

    def __init__(self, rows: _Rows, taken: Sequence[int], used: Callable[[memoryview], None]) -> None:
        self._rows, self._taken, self._used = rows, taken, used
        self._lock = threading.Lock()
        self._is_used = False
        self.sent: Mark | None = None

    def is_there(self) -> bool:
        return self.sent is not None and self.sent.query()

    def wait(self) -> None:
        assert self.sent is not None, "it has begun"
        self.sent.synchronize()

    def use(self) -> None:
        with self._lock:
            if self._is_used:
                return
            if not self._taken:
                raise RuntimeError("the bytes of a slot are used that are not there any more")
            try:
                self._used(self._rows.content(self._taken))
            finally:
                self._give_back()
            self._is_used = True

    def drop(self) -> None:
        # A copy that is still under way does no harm: those that come into these rows do so behind it.
        with self._lock:
            self._give_back()

    def _give_back(self) -> None:
        self._rows.give_back(self._taken)
        self._taken = ()


class DeviceSlots:
    """The slots of a pool on a device; see `Slots`.

    Args:
        memory: the pool's, uint8 [blocks, bytes of a block].
        widest: blocks of its widest slot.
        leaving_bytes: what may have left the pool, and not be used yet.
        area_bytes: of the device's memory for what is on its way at a time: there are two such areas out of the pool,
            and two into it, so that one is filled while the other is emptied.
        queues: of the device; tests inject others.
    """

    def __init__(
        self,
        memory: Tensor,
        widest: int,
        leaving_bytes: int = LEAVING_BYTES,
        area_bytes: int = STAGED_BYTES // 2,
        queues: Queues | None = None,
    ) -> None:
        self._pool, self._device = memory.view(WORD), memory.device
        self._queues = queues_of(self._device) if queues is None else queues
        block, words = memory.shape[1], self._pool.shape[1]
        self._rows = _Rows(pinned(max(widest, leaving_bytes // block), words, self._device, _OPTIONS))
        self._at_a_time = count = max(1, area_bytes // block)
        areas = [_Area(count, words, self._device, self._queues) for _ in range(4)]
        host = [pinned(count, words, self._device, _OPTIONS) for _ in range(2)]
        self._out = cycle(areas[:2])
        self._in = cycle([(area, each, each.numpy().view("uint8")) for area, each in zip(areas[2:], host, strict=True)])
        self._asked: list[tuple[Sequence[int], Sequence[int], _Leaving]] = []

    def copied(self, blocks: Sequence[int], used: Callable[[memoryview], None]) -> _Leaving | None:
        """See `Slots`; it is used on the thread that asks for it."""
        taken = self._rows.take(len(blocks))
        if taken is None:
            return None
        leaving = _Leaving(self._rows, taken, used)
        self._asked.append((blocks, taken, leaving))
        return leaving

    def begin_copies(self) -> None:
        """See `Slots`: all are gathered before what is computed from now on."""
        asked, self._asked = self._asked, []
        if not asked:
            return
        # In ascending order, neighbours are copied together.
        pairs = sorted(pair for blocks, rows, _ in asked for pair in zip(rows, blocks, strict=True))
        for first in range(0, len(pairs), self._at_a_time):
            self._send(pairs[first : first + self._at_a_time])
        sent = self._queues.copying.mark()
        for _, _, leaving in asked:
            leaving.sent = sent

    def _send(self, pairs: Sequence[tuple[int, int]]) -> None:
        computing, copying = self._queues
        rows, blocks = [row for row, _ in pairs], [block for _, block in pairs]
        area, pool, host, device = next(self._out), self._pool, self._rows.memory, self._device
        staged = area.blocks[: len(blocks)]
        if area.copied is not None:
            computing.wait_for(area.copied)
        computing.run(lambda: torch.index_select(pool, 0, brought(blocks, device), out=staged))
        copying.wait_for(computing.mark())

        def copy() -> None:
            for first, end in runs(rows):
                host[rows[first] : rows[end - 1] + 1].copy_(staged[first:end], non_blocking=True)

        copying.run(copy)
        area.copied = copying.mark()

    def put_slots(self, slots: Sequence[tuple[Sequence[int], bytes | bytearray]]) -> None:
        """See `Slots`: behind the steps that are under way, before what is computed from now on."""
        size = self._pool.shape[1] * WORD.itemsize
        pieces = [
            (block, memoryview(content)[size * number :][:size])
            for blocks, content in slots
            for number, block in enumerate(blocks)
        ]
        for first in range(0, len(pieces), self._at_a_time):
            self._bring(pieces[first : first + self._at_a_time])

    def _bring(self, pieces: Sequence[tuple[int, memoryview]]) -> None:
        computing, copying = self._queues
        area, host, content = next(self._in)
        pool, device, blocks = self._pool, self._device, [block for block, _ in pieces]
        staged, source = area.blocks[: len(pieces)], host[: len(pieces)]
        # Both areas are under way: mostly the older one has long come.
        if area.copied is not None:
            area.copied.synchronize()
        for row, (_, piece) in enumerate(pieces):
            content[row].data[:] = piece
        copying.wait_for(area.used)
        copying.run(lambda: staged.copy_(source, non_blocking=True))
        area.copied = copying.mark()
        computing.wait_for(area.copied)
        computing.run(lambda: pool.index_copy_(0, brought(blocks, device), staged))
        area.used = computing.mark()
