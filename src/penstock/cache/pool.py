"""The block pool: every block is free, used, cached or retiring, and free + used + cached + retiring = total.

Blocks are handed out as *slots* of one or more, which are held, published and given back together. A slot is named by
its first block. Since all blocks are of one size, any free ones make a slot.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.cache.eviction import BlockUse, EvictionKey, least_recently_used
from penstock.cache.prefix import PrefixIndex


@dataclass(slots=True)
class _Keep:
    """How long a block is kept: until then, and for how many seconds from its next use on."""

    until: float
    seconds: float


class BlockPool:
    """Reference-counted slots of blocks, which are numbered 0 to `num_blocks - 1`.

    - *used*: at least one sequence holds it.
    - *cached*: no sequence holds it, its content is published in the prefix index, it may be evicted at any time.
    - *retiring*: no sequence holds it, but a plan that has not committed yet may still read or write it.
    - *free*: the rest.

    Published slots can be *kept* for a time, at most `max_kept` blocks of them: they are evicted behind all others.

    Attributes:
        now: when the pool was told the time last.
    """

    def __init__(
        self,
        num_blocks: int,
        index: PrefixIndex,
        eviction_key: EvictionKey = least_recently_used,
        max_kept: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self._index = index
        self._eviction_key = eviction_key
        # Free blocks that were used before; the last one goes out first. Then come those that never were, low numbers
        # first, so that a lightly used pool touches little memory.
        self._returned: list[int] = []
        # All blocks of slots with more than one, by the first.
        self._members: dict[int, tuple[int, ...]] = {}
        # Of the blocks that were ever used. The others need no entry: a fleet's pools are simulated in one process.
        self._references: list[int] = []
        # Of slots that were given back.
        self._use: dict[int, BlockUse] = {}
        self._retiring: dict[int, int] = {}
        self._num_retiring = self._num_cached = self._num_kept = 0
        # Shared blocks that an outstanding plan of a sequence that let go may touch, with that plan's number.
        self._touched_until: dict[int, int] = {}
        self._committed = -1
        self._cached: dict[int, tuple[int, ...]] = {}
        self._eviction_heap: list[tuple[tuple[int, ...], int]] = []
        self._clock = 0
        self._max_kept = max_kept
        self._kept: dict[int, _Keep] = {}
        self._kept_and_cached = 0
        # What has passed here may be out of date: a use of the block has moved its deadline.
        self._deadlines: list[tuple[float, int]] = []
        self.now = 0.0

    @property
    def num_free(self) -> int:
        """Number of blocks that hold nothing."""
        return len(self._returned) + self.num_blocks - len(self._references)

    @property
    def num_cached(self) -> int:
        """Blocks that no sequence holds and whose content can still be hit."""
        return self._num_cached

    @property
    def num_retiring(self) -> int:
        """Blocks that wait for outstanding plans."""
        return self._num_retiring

    @property
    def num_used(self) -> int:
        """Blocks held by at least one sequence."""
        return len(self._references) - len(self._returned) - self._num_cached - self._num_retiring

    @property
    def num_available(self) -> int:
        """Blocks that an allocation could have now: free and cached ones."""
        return self.num_free + self._num_cached

    @property
    def num_spare(self) -> int:
        """Blocks that an allocation could have now without taking one that is kept."""
        return self.num_free + self._num_cached - self._kept_and_cached

    @property
    def num_kept(self) -> int:
        """Blocks that are kept, used or not."""
        return self._num_kept

    def blocks_of(self, slot: int) -> tuple[int, ...]:
        """All blocks of a slot."""
        return self._members.get(slot) or (slot,)

    def _width(self, slot: int) -> int:
        return len(self._members[slot]) if slot in self._members else 1

    def tick(self, now: float) -> None:
        """It is `now`, in seconds, on a clock that never goes back: what was to be kept until now no longer is."""
        self.now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            _, block = heapq.heappop(self._deadlines)
            keep = self._kept.get(block)
            if keep is not None and keep.until <= now:
                self._let_go(block)

    def keep(self, block: int, seconds: float) -> bool:
        """Keep a published block for `seconds`, again from each use on; False where too many are kept already."""
        keep = self._kept.get(block)
        if keep is None:
            width = self._width(block)
            if self._num_kept + width > self._max_kept:
                return False
            keep = self._kept[block] = _Keep(self.now, seconds)
            self._num_kept += width
            if block in self._cached:
                self._cache(block)
                self._kept_and_cached += width
        keep.seconds = max(keep.seconds, seconds)
        self._refresh(block, keep)
        return True

    def kept_for(self, block: int) -> float:
        """For how many seconds from its next use on a block is kept; 0 where it is not."""
        keep = self._kept.get(block)
        return 0.0 if keep is None else keep.seconds

    def let_go(self, block: int) -> None:
        """A block is not kept any more, where it was."""
        if block in self._kept:
            self._let_go(block)

    def is_kept(self, block: int) -> bool:
        """Whether a block is kept."""
        return block in self._kept

    def _refresh(self, block: int, keep: _Keep) -> None:
        keep.until = max(keep.until, self.now + keep.seconds)
        heapq.heappush(self._deadlines, (keep.until, block))
        if len(self._deadlines) > 2 * len(self._kept) + 64:
            self._deadlines = [(keep.until, block) for block, keep in self._kept.items()]
            heapq.heapify(self._deadlines)

    def _let_go(self, block: int) -> None:
        del self._kept[block]
        self._num_kept -= self._width(block)
        if block in self._cached:
            self._kept_and_cached -= self._width(block)
            self._cache(block)

    def references(self, block: int) -> int:
        """How many block tables hold `block`."""
        return self._references[block] if block < len(self._references) else 0

    def is_writable(self, block: int) -> bool:
        """Whether its one holder may write: shared and published blocks are never written."""
        return self.references(block) == 1 and not self._index.is_published(block)

    def take(self, count: int, width: int = 1) -> list[int]:
        """`count` slots of `width` blocks with one reference each, evicting cached ones as needed.

        Raises RuntimeError, changing nothing, where fewer blocks are available.
        """
        if count * width > self.num_available:
            raise RuntimeError(f"{count} slots of {width} blocks are taken, and {self.num_available} blocks are there")
        if width == 1 and count <= self.num_free:
            return self._take_free(count)
        return [self._take(width) for _ in range(count)]

    def _take(self, width: int) -> int:
        while self.num_free < width:
            self._evict()
        if width == 1:
            return self._take_free(1)[0]
        slot, *others = self._take_free(width)
        for block in others:
            self._references[block] = 0
        self._members[slot] = (slot, *others)
        return slot

    def _take_free(self, count: int) -> list[int]:
        """`count` free blocks with one reference each."""
        left = len(self._returned) - count
        blocks = self._returned[max(left, 0) :]
        blocks.reverse()
        del self._returned[max(left, 0) :]
        for block in blocks:
            self._references[block] = 1
        if left < 0:
            used = len(self._references)
            blocks += range(used, used - left)
            self._references += [1] * -left
        return blocks

    def _evict(self) -> None:
        while True:
            key, slot = heapq.heappop(self._eviction_heap)
            # An entry is stale where the slot was hit, or cached again, after it was pushed.
            if self._cached.get(slot) == key:
                self._uncache(slot)
                if self._kept.pop(slot, None) is not None:
                    self._num_kept -= self._width(slot)
                self._index.withdraw(slot, self.now)
                self._set_free(slot)
                return

    def _set_free(self, slot: int) -> None:
        if self._members:
            self._returned += reversed(self._members.pop(slot, (slot,)))
        else:
            self._returned.append(slot)

    def share(self, block: int) -> None:
        """Add a reference to a block that is used, or whose published content was hit."""
        if self.references(block) == 0:
            if block in self._cached:
                self._uncache(block)
            elif block in self._retiring and self._index.is_published(block):
                self._touched_until[block] = self._retiring.pop(block)
                self._num_retiring -= self._width(block)
            else:
                raise RuntimeError(f"block {block} is shared but no sequence holds it and it is not published")
        keep = self._kept.get(block)
        if keep is not None:
            self._refresh(block, keep)
        self._references[block] += 1

    def release(self, block: int, *, depth: int = 0, until: int | None = None) -> None:
        """Give back one reference. The last one makes the block cached, free, or retiring.

        `depth` is its index in the sequence that lets go; `until` the number of the newest outstanding plan that may
        touch it, None if there is none.
        """
        references = self._references
        if block >= len(references) or references[block] <= 0:
            raise RuntimeError(f"block {block} is released but no sequence holds it")
        references[block] -= 1
        if references[block]:
            if until is not None:
                self._touched_until[block] = max(until, self._touched_until.get(block, until))
            return
        # Nothing is published that no sequence holds, so that others will never be cached.
        if self._index.is_published(block):
            use = self._use.get(block) or self._use.setdefault(block, BlockUse())
            self._clock += 1
            use.last_used, use.depth = self._clock, depth
        if until is None:
            until = -1
        if self._touched_until:
            until = max(self._touched_until.pop(block, -1), until)
        if until <= self._committed:
            self._settle(block)
        else:
            self._retiring[block] = until
            self._num_retiring += self._width(block)

    def release_all(self, blocks: Sequence[int], *, until: int | None) -> None:
        """Give back one reference of each slot of a sequence, the first one at depth 0."""
        references = self._references
        least = self._committed if until is None else until
        if least <= self._committed or self._touched_until or self._members or not self._are_unshared(blocks):
            for depth, block in enumerate(blocks):
                self.release(block, depth=depth, until=until)
            return
        # As most ends: a plan may touch all of them, and none will be cached.
        for block in blocks:
            references[block] = 0
        self._retiring.update(dict.fromkeys(blocks, least))
        self._num_retiring += len(blocks)

    def _are_unshared(self, blocks: Collection[int]) -> bool:
        """Whether one sequence alone holds each of the blocks, and none is published."""
        references, used = self._references, len(self._references)
        return self._index.has_none_of(blocks) and all(block < used and references[block] == 1 for block in blocks)

    def retire(self, committed: int) -> None:
        """Settle the blocks that waited for plans up to and including `committed`."""
        self._committed = committed
        if not self._retiring:
            return
        ended = [block for block, until in self._retiring.items() if until <= committed]
        if len(ended) == len(self._retiring):
            self._retiring.clear()
            self._num_retiring = 0
        else:
            for block in ended:
                del self._retiring[block]
                self._num_retiring -= self._width(block)
        if not self._members and self._index.has_none_of(ended):
            self._returned += ended
            return
        for block in ended:
            self._settle(block)

    def _settle(self, block: int) -> None:
        if self._index.is_published(block):
            width = self._width(block)
            self._num_cached += width
            if block in self._kept:
                self._kept_and_cached += width
            self._cache(block)
        else:
            self._set_free(block)

    def _cache(self, block: int) -> None:
        """Put a slot, or put it again, where its key says among those that can be evicted."""
        key = (int(block in self._kept), *self._eviction_key(self._use[block]))
        self._cached[block] = key
        heapq.heappush(self._eviction_heap, (key, block))
        if len(self._eviction_heap) > 2 * len(self._cached) + 64:
            self._eviction_heap = [(key, block) for block, key in self._cached.items()]
            heapq.heapify(self._eviction_heap)

    def _uncache(self, block: int) -> None:
        del self._cached[block]
        width = self._width(block)
        self._num_cached -= width
        if block in self._kept:
            self._kept_and_cached -= width

    def check(self, table_references: dict[int, int]) -> None:
        """Raise RuntimeError unless the pool agrees with `table_references`, references per slot over all tables."""
        free = [*self._returned, *range(len(self._references), self.num_blocks)]
        if len(set(free)) != len(free):
            raise RuntimeError("a block is twice in the free list")
        idle = [set(free), set(self._cached), set(self._retiring)]
        if sum(map(len, idle)) != len(set().union(*idle)):
            raise RuntimeError("a block is in two states at once")
        behind = [block for slot, blocks in self._members.items() for block in blocks[1:] if blocks[0] == slot]
        if len(set(behind)) != sum(len(blocks) - 1 for blocks in self._members.values()) or set(behind) & set().union(
            self._members, *idle
        ):
            raise RuntimeError("a block is in two slots at once, or in one and free")
        without_holder = set(behind).union(*idle)
        for block, references in enumerate(self._references + [0] * (self.num_blocks - len(self._references))):
            expected = table_references.get(block, 0)
            if references != expected:
                raise RuntimeError(f"block {block} has {references} references, tables hold {expected}")
            if (expected == 0) != (block in without_holder):
                raise RuntimeError(f"block {block} with {expected} references is in the wrong state")
        for count, slots in (
            (self._num_cached, self._cached),
            (self._num_retiring, self._retiring),
            (self._num_kept, self._kept),
            (self._kept_and_cached, [slot for slot in self._kept if slot in self._cached]),
        ):
            if count != sum(map(self._width, slots)):
                raise RuntimeError("blocks that are cached, retiring or kept are counted wrongly")
        if self._num_kept > self._max_kept:
            raise RuntimeError("more blocks are kept than may be")
        for block in self._kept:
            if not self._index.is_published(block):
                raise RuntimeError(f"block {block} is kept but not published")
        for block in free:
            if self._index.is_published(block):
                raise RuntimeError(f"block {block} is free but published")
