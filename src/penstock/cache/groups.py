"""Groups of layers that are seen alike: each answers for its own slots, and only groups turn tokens into slots."""

from dataclasses import dataclass, field
from typing import Protocol

from penstock.cache.chain import PrefixChain
from penstock.cache.pool import BlockPool
from penstock.cache.prefix import PrefixIndex
from penstock.cache.shelves import Shelves
from penstock.core.kv import GroupSpec

RELEASED = -1

Copy = tuple[int, int]
"""A slot, and the one that it is to be copied to."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A slot that a table needs: its place there, and the depth of the prefix that it ends."""

    place: int
    depth: int


@dataclass(slots=True)
class Table:
    """What one sequence holds in one group; a slot is named by its first block.

    Attributes:
        slots: by index from the sequence's first on; RELEASED where nothing is held. Of a record there is one.
        dropped: how many slots were given up from among them; those behind have moved up.
        kept_from: behind a group's beginning, the index of the first slot that is not released.
        sent: how many leading slots the executor already knows.
        position: of a record, behind which position it is once all outstanding plans have been carried out.
        before: of a record, the one from before an outstanding plan's drafts, and its position.
        saved: of a record, those that are to be published, and their positions.
        source: where it is of a source, the keys of its slots.
    """

    slots: list[int] = field(default_factory=list)
    dropped: int = 0
    kept_from: int = 0
    sent: int = 0
    position: int = 0
    before: tuple[int, int] | None = None
    saved: list[tuple[int, int]] = field(default_factory=list)
    source: PrefixChain | None = None

    def held(self) -> list[int]:
        """All slots that are held, one for each reference."""
        slots = [slot for slot in self.slots if slot != RELEASED]
        return slots + [slot for _, slot in self.beside()]

    def beside(self) -> list[tuple[int, int]]:
        """The records that are held beside the newest one, with their positions."""
        return self.saved if self.before is None else [*self.saved, self.before]


@dataclass(frozen=True, slots=True)
class Want:
    """What a reservation takes: slots for further positions, and slots for copies of what may not be written."""

    fresh: int = 0
    copies: int = 0


class Group(Protocol):
    """What one kind of group needs to have, takes, may give back, and can hit.

    `until` is the newest outstanding plan that may touch what is given back, None if there is none.
    """

    width: int

    def hit(self, chain: PrefixChain, limit: int, shelves: Shelves | None = None) -> int:
        """The most leading full slots, at most `limit`, after which this group could go on from the cache.

        With `shelves`, what these have counts too.
        """

    def attach(self, table: Table, chain: PrefixChain, hit: int) -> list[Missing]:
        """Give an empty table what it needs to go on after `hit` full slots, as far as it is published.

        Returns the others, for which it has no slots yet.
        """

    def give(self, table: Table, place: int, slot: int) -> None:
        """Give the table one of those."""

    def release_passed(self, table: Table, start: int, until: int | None) -> None:
        """Give back what no position from `start` on can see."""

    def wants(self, table: Table, start: int, end: int, *, drafts: bool) -> Want:
        """What is missing before positions `start` to `end - 1` are computed; `drafts` may be computed in vain."""

    def take(self, table: Table, start: int, end: int, want: Want, plan: int, *, drafts: bool) -> Copy | None:
        """Take what is wanted, which is there; the slot that the plan has to copy, and where to."""

    def roll_back(self, table: Table, end: int, until: int | None) -> int:
        """Positions behind `end` were computed in vain. Up to which position, at most `end`, there is state now."""

    def publish(self, table: Table, chain: PrefixChain | None, first: int, full: int, until: int | None) -> None:
        """Offer the full slots from `first` to `full - 1`, whose tokens are verified, to other sequences.

        Without their chain nothing is offered.
        """

    def needed(self, table: Table, tokens: int) -> list[tuple[int, int]] | None:
        """Index and slot of what later positions need of the first `tokens`; None where there is no state of these."""

    def fork(self, table: Table, tokens: int) -> Table | None:
        """A table that shares what is needed after `tokens` tokens; None, sharing nothing, where that is not held."""


class TokenGroup:
    """Layers with entries for each token: a position attends to the sequence's first ones, and to the last ones."""

    def __init__(self, number: int, spec: GroupSpec, block_size: int, pool: BlockPool, index: PrefixIndex) -> None:
        self.width = spec.width
        self._number = number
        self._size = block_size
        self._pool = pool
        self._index = index
        self._window = spec.sees.last
        # Slots with the beginning, which is never released.
        self._beginning = 0 if self._window is None else -(-spec.sees.first // block_size)

    def _first_needed(self, position: int) -> int:
        """Index of the first slot behind the beginning that the token at `position` attends to."""
        if self._window is None:
            return 0
        return max(self._beginning, max(0, position - self._window + 1) // self._size)

    def hit(self, chain: PrefixChain, limit: int, shelves: Shelves | None = None) -> int:
        """The longest prefix, counted from its end, whose beginning and last window are published without a gap.

        The window is that of the prefix's own last token, which may have to be computed again for its output.
        """
        if self._window is None:
            return self._unbroken(chain, limit, shelves)
        beginning = self._unbroken(chain, min(self._beginning, limit), shelves)
        if beginning < min(self._beginning, limit):
            return beginning
        end = limit
        for depth in range(limit - 1, beginning - 1, -1):
            if not is_there(self._index, shelves, self._number, chain, depth):
                end = depth
            elif depth <= self._first_needed(end * self._size - 1):
                return end
        return end

    def _unbroken(self, chain: PrefixChain, limit: int, shelves: Shelves | None) -> int:
        """The length of the unbroken chain of published slots."""
        for depth in range(limit):
            if not is_there(self._index, shelves, self._number, chain, depth):
                return depth
        return limit

    def attach(self, table: Table, chain: PrefixChain, hit: int) -> list[Missing]:
        """Share the beginning and the last window."""
        first = min(self._first_needed(hit * self._size - 1), hit) if hit else 0
        table.slots, missing = [RELEASED] * hit, []
        for index in self._seen(first, hit):
            slot = self._index.lookup(self._number, chain, index)
            if slot is None:
                missing.append(Missing(index, index))
            else:
                self._pool.share(slot)
                table.slots[index] = slot
        table.kept_from = first
        return missing

    def give(self, table: Table, place: int, slot: int) -> None:
        """At the place of its tokens."""
        table.slots[place] = slot

    def release_passed(self, table: Table, start: int, until: int | None) -> None:
        """Give back what lies between the beginning and the window of position `start`."""
        first = min(self._first_needed(start), len(table.slots))
        for index in range(max(table.kept_from, self._beginning), first):
            if table.slots[index] != RELEASED:
                self._pool.release(table.slots[index], depth=index, until=until)
                table.slots[index] = RELEASED
        table.kept_from = max(table.kept_from, first)

    def wants(self, table: Table, start: int, end: int, *, drafts: bool) -> Want:
        """Slots behind those that are there, and a copy of the one that is written first if it may not be."""
        fresh = -(-end // self._size) - table.dropped - len(table.slots)
        return Want(max(0, fresh), int(self._is_shared(table, start)))

    def _is_shared(self, table: Table, start: int) -> bool:
        index = start // self._size - table.dropped
        return index < len(table.slots) and not self._pool.is_writable(table.slots[index])

    def take(self, table: Table, start: int, end: int, want: Want, plan: int, *, drafts: bool) -> Copy | None:
        """Copy on write, and slots for further positions."""
        copy = None
        if want.copies:
            index = start // self._size - table.dropped
            source, (target,) = table.slots[index], self._pool.take(1, self.width)
            copy = source, target
            table.slots[index] = target
            table.sent = min(table.sent, index)
            # The copy is made when the plan runs, so its source must outlive it.
            self._pool.release(source, depth=index, until=plan)
        if want.fresh:
            table.slots += self._pool.take(want.fresh, self.width)
        return copy

    def roll_back(self, table: Table, end: int, until: int | None) -> int:
        """Give back the slots behind the one for position `end`."""
        for index in range(len(table.slots) - 1, end // self._size - table.dropped, -1):
            self._pool.release(table.slots.pop(), depth=index, until=until)
        table.sent = min(table.sent, len(table.slots))
        return end

    def publish(self, table: Table, chain: PrefixChain | None, first: int, full: int, until: int | None) -> None:
        """Offer each slot that is still held."""
        for index in range(first, full):
            if chain is not None and table.slots[index] != RELEASED:
                self._index.publish(self._number, chain, index, table.slots[index])

    def needed(self, table: Table, tokens: int) -> list[tuple[int, int]] | None:
        """What the position behind `tokens` attends to."""
        end = -(-tokens // self._size)
        first = min(self._first_needed(tokens), end)
        return [(index, table.slots[index]) for index in self._seen(first, end)]

    def _seen(self, first: int, end: int) -> list[int]:
        """The indices of the beginning, and those from `first` to `end - 1`."""
        return [*range(min(self._beginning, first)), *range(first, end)]

    def fork(self, table: Table, tokens: int) -> Table | None:
        """The same slots; the first of the two sequences that writes into one gets a copy."""
        if table.kept_from > self._first_needed(tokens):
            return None
        slots = table.slots[: -(-tokens // self._size) - table.dropped]
        for slot in slots:
            if slot != RELEASED:
                self._pool.share(slot)
        return Table(slots, table.dropped, table.kept_from)


class RecordGroup:
    """Layers with one record a sequence, of all positions before: it is written by each step, and kept now and then.

    A slot that is published or shared is never written. So the step behind a position at which the record is to be
    kept writes into a copy; so does a step with drafts, which may have been in vain.
    """

    def __init__(
        self,
        number: int,
        spec: GroupSpec,
        block_size: int,
        pool: BlockPool,
        index: PrefixIndex,
        *,
        keeps: bool,
    ) -> None:
        assert spec.record_interval is not None
        self.width = spec.width
        self._number = number
        self._size = block_size
        self._interval = spec.record_interval
        self._pool = pool
        self._index = index
        self._keeps = keeps

    def hit(self, chain: PrefixChain, limit: int, shelves: Shelves | None = None) -> int:
        """The longest prefix behind which a record was kept."""
        step = self._interval // self._size
        for depth in range(limit // step * step, 0, -step):
            if is_there(self._index, shelves, self._number, chain, depth - 1):
                return depth
        return 0

    def attach(self, table: Table, chain: PrefixChain, hit: int) -> list[Missing]:
        """Share the record that was kept behind the prefix."""
        table.position, table.slots = hit * self._size, []
        if not hit:
            return []
        slot = self._index.lookup(self._number, chain, hit - 1)
        if slot is None:
            return [Missing(0, hit - 1)]
        self._pool.share(slot)
        table.slots = [slot]
        return []

    def give(self, table: Table, place: int, slot: int) -> None:
        """The record takes the one place of the table."""
        table.slots = [slot]

    def release_passed(self, table: Table, start: int, until: int | None) -> None:
        """There is one record, and the next position needs it."""

    def wants(self, table: Table, start: int, end: int, *, drafts: bool) -> Want:
        """A record if there is none, and a copy if the one that is there must stay as it is."""
        if not table.slots:
            return Want(fresh=1)
        if drafts or not self._pool.is_writable(table.slots[0]):
            return Want(copies=1)
        # No sequence loses anything for a record that may be of use later.
        return Want(copies=int(self._is_to_be_kept(start) and self._pool.num_spare >= 2 * self.width))

    def _is_to_be_kept(self, position: int) -> bool:
        return self._keeps and position > 0 and position % self._interval == 0

    def take(self, table: Table, start: int, end: int, want: Want, plan: int, *, drafts: bool) -> Copy | None:
        """The record that the plan writes."""
        copy = None
        if want.fresh:
            table.slots, table.sent = self._pool.take(1, self.width), 0
        if want.copies:
            source, (target,) = table.slots[0], self._pool.take(1, self.width)
            copy = source, target
            table.slots, table.sent = [target], 0
            if drafts:
                table.before = start, source
            elif self._pool.is_writable(source):
                table.saved.append((start, source))
            else:
                self._pool.release(source, depth=start // self._size, until=plan)
        table.position = end
        return copy

    def roll_back(self, table: Table, end: int, until: int | None) -> int:
        """Go back to the record from before the drafts, unless all were right.

        Raises RuntimeError where there is none.
        """
        if table.before is None:
            if table.position > end:
                raise RuntimeError(f"the record is behind {table.position} positions, and was not kept at {end}")
            return table.position
        kept, table.before = table.before, None
        if table.position == end:
            table.saved.append(kept)
        else:
            self._pool.release(table.slots[0], depth=end // self._size, until=until)
            table.position, table.slots, table.sent = kept[0], [kept[1]], 0
        return table.position

    def publish(self, table: Table, chain: PrefixChain | None, first: int, full: int, until: int | None) -> None:
        """Offer the records that were to be kept; what is not to be published is given back."""
        left = []
        for position, slot in table.saved:
            if position > full * self._size:
                left.append((position, slot))
                continue
            depth = position // self._size
            if chain is not None and self._is_to_be_kept(position):
                self._index.publish(self._number, chain, depth - 1, slot)
            self._pool.release(slot, depth=depth, until=until)
        table.saved = left

    def needed(self, table: Table, tokens: int) -> list[tuple[int, int]] | None:
        """The record, where it is that of these tokens."""
        if tokens == 0:
            return []
        return [(0, table.slots[0])] if table.slots and table.position == tokens else None

    def fork(self, table: Table, tokens: int) -> Table | None:
        """The same record; the first of the two sequences that writes it gets a copy."""
        if not table.slots or table.position != tokens:
            return None
        self._pool.share(table.slots[0])
        return Table([table.slots[0]], position=tokens)


def is_there(index: PrefixIndex, shelves: Shelves | None, group: int, chain: PrefixChain, depth: int) -> bool:
    """Whether the slot at `depth` of a chain is published, or on a shelf."""
    if index.lookup(group, chain, depth) is not None:
        return True
    return shelves is not None and shelves.has(group, chain.kept_key(depth))
