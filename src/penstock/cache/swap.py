"""Blocks in the processor's memory, where those of preempted sequences are kept until they come back.

Copies are made by plans, which are carried out in order. So a host block can be given to others as soon as the plan
that reads it is made. A sequence that gets a block of the pool in the plan that swaps it out writes into it afterwards.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.cache.manager import RELEASED, KVCache, SequenceBlocks
from penstock.core.plan import BlockSwap

Swaps = tuple[BlockSwap, ...]


@dataclass(slots=True, eq=False)
class SwappedBlocks:
    """What of one sequence is in the processor's memory.

    Attributes:
        tokens: leading positions with which it can go on; 0 once the copy is gone, or has come back.
        firsts: per group, the index of the first block that the position behind them attends to.
        hosts: per group, where the blocks from there on are.
        unconfirmed: whether the plan that makes the copy is outstanding: should it fail, there is none.
    """

    tokens: int
    firsts: list[int]
    hosts: list[list[int]]
    unconfirmed: bool = False


class SwapSpace:
    """Host blocks, numbered 0 to `num_blocks - 1`, beside the pool of `cache`: free + used = total.

    Everything is all or nothing. What is asked for goes into the plan in the making, which `take` ends.
    """

    def __init__(self, cache: KVCache, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._cache = cache
        self._free = list(range(num_blocks - 1, -1, -1))
        self._out: list[BlockSwap] = []
        self._in: list[BlockSwap] = []
        # Read by the plan in the making, so that it may not write them.
        self._vacated: list[int] = []
        # Copies that it makes, and those that outstanding plans make.
        self._copied: list[SwappedBlocks] = []
        self._unconfirmed: dict[int, list[SwappedBlocks]] = {}

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
        count = sum(len(group) for _, group in needed)
        if count > len(self._free):
            return None
        # In ascending order, neighbours are copied together.
        taken = sorted(self._free[len(self._free) - count :], reverse=True)
        del self._free[len(self._free) - count :]
        swapped = SwappedBlocks(tokens, [first for first, _ in needed], [[taken.pop() for _ in g] for _, g in needed])
        for (_, group), hosts in zip(needed, swapped.hosts, strict=True):
            self._out += map(BlockSwap, group, hosts)
        self._copied.append(swapped)
        return swapped

    def swap_in(self, blocks: SequenceBlocks, swapped: SwappedBlocks, fits: Callable[[int], bool]) -> bool:
        """Give a sequence that holds nothing its blocks again; False, and no change, where they don't fit.

        Blocks that the prefix cache has are shared with it. `fits` is told how many those are, once they are held.
        """
        tables = self._share_published(blocks, swapped)
        shared = [(index, block) for table in tables for index, block in table if block != RELEASED]
        missing = sum(map(len, tables)) - len(shared)
        taken = self._cache.pool.allocate(missing) if fits(len(shared)) else None
        if taken is None:
            for index, block in shared:
                self._cache.pool.release(block, depth=index)
            return False
        for group, (table, hosts) in enumerate(zip(tables, swapped.hosts, strict=True)):
            first = swapped.firsts[group]
            blocks.tables[group] = [RELEASED] * first
            blocks.kept_from[group] = first
            for (_, block), host in zip(table, hosts, strict=True):
                if block == RELEASED:
                    block = taken.pop()
                    self._in.append(BlockSwap(block, host))
                blocks.tables[group].append(block)
        self._vacated += _emptied(swapped)
        return True

    def _share_published(self, blocks: SequenceBlocks, swapped: SwappedBlocks) -> list[list[tuple[int, int]]]:
        """Per group the indices of what was swapped out, each with the published block that is held now, or RELEASED.

        A block that the sequence goes on to write is its own.
        """
        cache, full = self._cache, 0
        if cache.prefix_caching:
            full = min(swapped.tokens // cache.spec.block_size, len(blocks.chain))
        tables = []
        for group, (first, hosts) in enumerate(zip(swapped.firsts, swapped.hosts, strict=True)):
            table = []
            for index in range(first, first + len(hosts)):
                block = cache.index.lookup(group, blocks.chain, index) if index < full else None
                if block is not None:
                    cache.pool.share(block)
                table.append((index, RELEASED if block is None else block))
            tables.append(table)
        return tables

    def discard(self, swapped: SwappedBlocks) -> None:
        """The copy is of no more use: its sequence has ended, or has found more in the prefix cache."""
        hosts = _emptied(swapped)
        if swapped in self._copied:
            # Two copies to one host block would have no order.
            self._copied.remove(swapped)
            gone = set(hosts)
            self._out = [swap for swap in self._out if swap.host not in gone]
        self._free += hosts

    def take(self, plan: int) -> tuple[Swaps, Swaps]:
        """What is swapped out and in by the plan in the making, which gets this number and is outstanding now."""
        swaps = tuple(self._out), tuple(self._in)
        for swapped in self._copied:
            swapped.unconfirmed = True
        if self._copied:
            self._unconfirmed[plan] = self._copied
        self._free += self._vacated
        self._out, self._in, self._vacated, self._copied = [], [], [], []
        return swaps

    def settle(self, plan: int, *, failed: bool) -> None:
        """A plan has committed. Where it has `failed`, what its copies hold is unknown, and they are given up."""
        for swapped in self._unconfirmed.pop(plan, ()):
            swapped.unconfirmed = False
            if failed:
                self.discard(swapped)

    def check(self, copies: Iterable[SwappedBlocks]) -> None:
        """Raise RuntimeError unless every host block is free, or in one of the `copies` that sequences have."""
        held = [host for swapped in copies for hosts in swapped.hosts for host in hosts]
        if sorted(self._free + self._vacated + held) != list(range(self.num_blocks)):
            raise RuntimeError("a host block is lost, or in two states at once")


def _emptied(swapped: SwappedBlocks) -> list[int]:
    """The host blocks of a copy that ends."""
    hosts = [host for group in swapped.hosts for host in group]
    swapped.tokens, swapped.hosts = 0, [[] for _ in swapped.hosts]
    return hosts
