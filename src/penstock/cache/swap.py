"""Blocks in the processor's memory, where the state of preempted sequences is kept until they come back.

What goes out is read before the rows of its plan write anything, so that a sequence may give its blocks back at once.
What comes in can be read once it is reported (`transfers.py`). A host block is given to others once both are over.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.cache.groups import RELEASED
from penstock.cache.held import SequenceBlocks
from penstock.cache.manager import KVCache
from penstock.cache.transfers import Batch
from penstock.core.plan import Place

Hosts = list[list[tuple[int, tuple[int, ...]]]]
"""Per group, the index of each slot that the next position needs, and the host blocks that have it."""


@dataclass(slots=True, eq=False)
class SwappedBlocks:
    """What of one sequence is in the processor's memory.

    Attributes:
        tokens: leading positions with which it can go on; 0 once the copy is gone, or is on its way back.
        hosts: where it is.
        storing: the transfers that bring it there.
    """

    tokens: int
    hosts: Hosts
    storing: Batch

    def empty(self) -> list[int]:
        """The copy ends; the host blocks that it had."""
        hosts = [host for group in self.hosts for _, places in group for host in places]
        self.tokens, self.hosts = 0, [[] for _ in self.hosts]
        return hosts


class SwapSpace:
    """Host blocks, numbered 0 to `num_blocks - 1`, beside the pool of `cache`: free + used = total.

    Everything is all or nothing.
    """

    def __init__(self, cache: KVCache, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._cache = cache
        self._free = list(range(num_blocks - 1, -1, -1))
        # Copies that are being made, and host blocks that are free once a batch is over.
        self._storing: dict[Batch, SwappedBlocks] = {}
        self._vacated: dict[Batch, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Host blocks that hold nothing."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Host blocks that hold something of a sequence."""
        return self.num_blocks - len(self._free)

    def swap_out(self, blocks: SequenceBlocks, tokens: int) -> SwappedBlocks | None:
        """Have what a sequence needs of its first `tokens` positions copied; None where too few host blocks are free.

        The sequence still holds its blocks, and may give them back at once.
        """
        needed = self._cache.needed_from(blocks, tokens)
        if needed is None:
            return None
        blocks_of = self._cache.pool.blocks_of
        sources = [[(index, blocks_of(slot)) for index, slot in group] for group in needed]
        count = sum(len(slot) for group in sources for _, slot in group)
        if count > len(self._free):
            return None
        # In ascending order, neighbours are copied together.
        taken = sorted(self._free[len(self._free) - count :], reverse=True)
        del self._free[len(self._free) - count :]
        batch, hosts = Batch(), []
        for number, group in enumerate(sources):
            hosts.append([(index, tuple(taken.pop() for _ in slot)) for index, slot in group])
            for (_, slot), (_, places) in zip(group, hosts[-1], strict=True):
                self._cache.transfers.add(batch, number, Place("pool", slot), Place("host", places))
        swapped = SwappedBlocks(tokens, hosts, batch)
        self._storing[batch] = swapped
        return swapped

    def swap_in(self, blocks: SequenceBlocks, swapped: SwappedBlocks, fits: Callable[[int], bool]) -> Batch | None:
        """Give a sequence that holds nothing its blocks again; None, and no change, where they don't fit.

        Nothing of what they hold may be read before the batch is over. Slots that the prefix cache has are shared with
        it. `fits` is told how many blocks those are, once they are held.
        """
        pool = self._cache.pool
        tables = self._share_published(blocks, swapped)
        shared = [(index, slot) for table in tables for index, slot, _ in table if slot != RELEASED]
        missing = sum(len(hosts) for table in tables for _, slot, hosts in table if slot == RELEASED)
        there = sum(len(pool.blocks_of(slot)) for _, slot in shared)
        if not fits(there) or missing > pool.num_available:
            for index, slot in shared:
                pool.release(slot, depth=index)
            return None
        batch, targets = Batch(), []
        for number, table in enumerate(tables):
            slots: list[tuple[int, int]] = []
            for index, slot, hosts in table:
                if slot == RELEASED:
                    (slot,) = pool.take(1, len(hosts))
                    targets.append(slot)
                    target = Place("pool", pool.blocks_of(slot))
                    self._cache.transfers.add(batch, number, Place("host", hosts), target)
                slots.append((index, slot))
            self._cache.restore(blocks, number, slots, swapped.tokens)
        self._cache.transfers.hold(batch, targets)
        self._vacate(batch, swapped.empty())
        return batch

    def _share_published(
        self, blocks: SequenceBlocks, swapped: SwappedBlocks
    ) -> list[list[tuple[int, int, tuple[int, ...]]]]:
        """Per group, index and host blocks of what was swapped out, with the published slot held now, or RELEASED.

        A slot that the sequence goes on to write is its own.
        """
        cache, tables = self._cache, []
        for group, hosts in enumerate(swapped.hosts):
            table = []
            for index, places in hosts:
                slot = cache.published(blocks, group, index, swapped.tokens)
                if slot is not None:
                    cache.pool.share(slot)
                table.append((index, RELEASED if slot is None else slot, places))
            tables.append(table)
        return tables

    def discard(self, swapped: SwappedBlocks) -> None:
        """The copy is of no more use: its sequence has ended, or has found more in the prefix cache."""
        batch = swapped.storing
        if not batch.is_over:
            self._cache.transfers.withdraw(batch)
        if batch.is_over:
            self._storing.pop(batch, None)
        self._vacate(batch, swapped.empty())

    def _vacate(self, batch: Batch, hosts: list[int]) -> None:
        """Host blocks are free once nothing of a batch reads or writes them."""
        if batch.is_over:
            self._free += hosts
        else:
            self._vacated.setdefault(batch, []).extend(hosts)

    def settle(self, over: Sequence[Batch]) -> None:
        """Batches of transfers are over. A copy that was not made whole is given up."""
        for batch in over:
            swapped = self._storing.pop(batch, None)
            self._free += self._vacated.pop(batch, [])
            if swapped is not None and batch.failed:
                self._free += swapped.empty()

    def check(self, copies: Iterable[SwappedBlocks]) -> None:
        """Raise RuntimeError unless every host block is free, or in one of the `copies` that sequences have."""
        held = [host for swapped in copies for group in swapped.hosts for _, hosts in group for host in hosts]
        vacated = [host for hosts in self._vacated.values() for host in hosts]
        if sorted(self._free + vacated + held) != list(range(self.num_blocks)):
            raise RuntimeError("a host block is lost, or in two states at once")
