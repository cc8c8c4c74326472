"""Prefixes that are kept on request: by a shelf where one can, else in the pool."""

from collections.abc import Iterable

from penstock.cache.chain import PrefixChain
from penstock.cache.keeps import Slot
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex
from penstock.cache.shelf_room import prefix_in
from penstock.cache.shelves import Shelves
from penstock.cache.transfers import Batch
from penstock.core.kv import KVSpec
from penstock.core.plan import ShelfName


class Keeping:
    """Decides where each slot of a prefix is kept. What a shelf keeps, the pool may give up like any other."""

    def __init__(self, spec: KVSpec, pool: BlockPool, index: PrefixIndex, shelves: Shelves) -> None:
        self._size = spec.block_size
        self._groups = range(len(spec.groups))
        self._pool = pool
        self._index = index
        self._shelves = shelves

    def keep(self, chain: PrefixChain, depths: int, seconds: float, *, in_pool: bool = True) -> int:
        """Keep the first published slots of a chain for `seconds`; how many tokens are kept, where room is short too.

        What no shelf keeps is kept `in_pool`, or not at all.
        """
        for depth in range(depths):
            if not all(
                self._keep((group, chain.kept_key(depth)), chain, depth, seconds, in_pool) for group in self._groups
            ):
                return depth * self._size
        return depths * self._size

    def _keep(self, slot: Slot, chain: PrefixChain, depth: int, seconds: float, in_pool: bool) -> bool:
        """Whether a slot is kept now; one that is nowhere, since a window has passed it, is not missed."""
        # Not always the sequence's own: another one may have published the same prefix before.
        block = self._index.lookup(slot[0], chain, depth)
        if block is not None and self._shelves.keep_any:
            self._shelves.write(*slot, self._pool.blocks_of(block), chain.owner.weight)
            # What the pool has promised, the shelf takes over.
            seconds = max(seconds, self._pool.kept_for(block))
        on_shelf = self._shelves.keep(slot, seconds)
        if block is None:
            return on_shelf or not self._shelves.has(*slot)
        # Until the shelf has said so, it may not have it.
        kept_here = in_pool and not self._shelves.is_sure(slot) and self._pool.keep(block, seconds)
        return on_shelf or kept_here

    def kept_tokens(self, chain: PrefixChain, depths: int) -> int:
        """Of the first slots of a chain, which are in the cache, how many tokens are kept from the first on."""
        for depth in range(depths):
            if not all(self._is_kept((group, chain.kept_key(depth)), chain, depth) for group in self._groups):
                return depth * self._size
        return depths * self._size

    def _is_kept(self, slot: Slot, chain: PrefixChain, depth: int) -> bool:
        block = self._index.lookup(slot[0], chain, depth)
        if self._shelves.is_kept(slot) or (block is not None and self._pool.is_kept(block)):
            return True
        # A group with a window has given back what is before it.
        return block is None and not self._shelves.has(*slot)

    def use(self, chain: PrefixChain, depths: int) -> None:
        """The first slots of a chain are used: what of them shelves keep is kept anew. The pool sees by itself."""
        if self._shelves.keep_any:
            for depth in range(min(depths, len(chain))):
                for group in self._groups:
                    self._shelves.use((group, chain.kept_key(depth)))

    def settle(self, over: Iterable[Batch]) -> dict[ShelfName, list[Slot]]:
        """Batches are over; returns what was written by them.

        The pool no longer has to keep what a shelf has said that it keeps. What was not there, against the books, is
        written once more.
        """
        written = self._shelves.settle(over)
        for slot in self._shelves.take_confirmed():
            block = self._index.block_of(slot[0], prefix_in(slot))
            if block is not None:
                self._pool.let_go(block)
        for slot, seconds in self._shelves.take_missed():
            block = self._index.block_of(slot[0], prefix_in(slot))
            if block is not None:
                self._shelves.write(*slot, self._pool.blocks_of(block))
                self._shelves.keep(slot, seconds)
        return written
