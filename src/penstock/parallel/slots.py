"""Slots of a pool whose blocks have a part in each of several ranks: outside of pools they are as one process has them.

What the first rank is asked for, it gathers from all; what it is given, all take their part of.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from penstock.core.kv import KVSpec
from penstock.core.kv_slices import slices
from penstock.parallel.leader import LeadingStorage, Telling
from penstock.parallel.messages import Give, Put
from penstock.parallel.shared import SharedRanks
from penstock.stepping.storage import Copied, Slots, Used


class RankSlots:
    """The part of one rank, in a pool of its own.

    Args:
        pool: this rank's.
        whole: the geometry of one process, and `specs` those of all ranks.
    """

    def __init__(self, pool: Slots, ranks: SharedRanks, rank: int, whole: KVSpec, specs: Sequence[KVSpec]) -> None:
        """Raises ValueError where slots are not cut by heads."""
        self._pool, self._ranks, self._rank = pool, ranks, rank
        self._runs = slices(whole, specs)
        self._sizes = [spec.slot_bytes(0) for spec in specs]
        self._whole = whole.slot_bytes(0)

    def meet(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Meet the others with the own part of a slot; the first one has all parts then, one behind the other."""
        own = bytearray()
        self._pool.copied(blocks, own.extend)
        return self._ranks.gather_bytes(np.frombuffer(own, np.uint8), self._sizes)

    def joined(self, parts: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The slot of these parts."""
        whole, start = np.zeros(self._whole, np.uint8), 0
        for runs, size in zip(self._runs, self._sizes, strict=True):
            for run in runs:
                whole[run.whole : run.whole + run.size] = parts[start + run.own : start + run.own + run.size]
            start += size
        return whole

    def put(self, blocks: Sequence[int], content: bytes | bytearray) -> None:
        """Put the own part of a slot, which `content` has whole, into blocks."""
        own, given = bytearray(self._sizes[self._rank]), memoryview(content)
        for run in self._runs[self._rank]:
            own[run.own : run.own + run.size] = given[run.whole : run.whole + run.size]
        self._pool.put_slots([(blocks, own)])


class LeadingSlots:
    """What the first rank copies out and in for all (`Slots`)."""

    def __init__(self, own: RankSlots, storage: LeadingStorage, tell: Telling) -> None:
        self._own, self._storage, self._tell = own, storage, tell

    def copied(self, blocks: Sequence[int], used: Callable[[memoryview], None]) -> Copied:
        """See `Slots`; it is used at once."""
        with self._tell.all_or_none():
            self._tell(Give(list(blocks)))
            # Others have done by now what was told before, and no step is under way.
            for change in self._storage.postponed():
                change()
            parts = self._own.meet(blocks)
        used(self._own.joined(parts).data)
        return Used()

    def begin_copies(self) -> None:
        """See `Slots`; they are over."""

    def put_slots(self, slots: Sequence[tuple[Sequence[int], bytes | bytearray]]) -> None:
        """See `Slots`; in all ranks it is done before the step that is begun next."""
        for blocks, content in slots:
            # Its memory may be used again before that.
            kept = bytes(content)
            self._tell(Put(list(blocks), kept))
            self._storage.postpone(partial(self._own.put, blocks, kept))
