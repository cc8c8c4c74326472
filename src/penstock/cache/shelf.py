"""The books of a shelf: which slots it has, which are being written, and how long it takes to read one.

A shelf keeps slots beyond the pool: a disk, or a store that machines share. What the books say may be out of date,
since others write there and make room: a slot that cannot be read is a miss, and its tokens are computed.
"""

import math
from collections.abc import Collection, Iterable

from penstock.cache.keeps import Keeps, Slot
from penstock.cache.shelf_places import Elsewhere, Places
from penstock.cache.transfers import Batch, Transfers
from penstock.core.events import ShelfTotals
from penstock.core.plan import Place, ShelfName, Shelved

# Slots that may be on their way to a shelf, by their bytes.
MOST_WRITING = 256 << 20
# What was measured last weighs this much.
_NEWEST = 0.2
# Seconds after which what was measured counts for half: what is thought too slow to be read is tried again some time.
_HALF_LIFE = 30.0


class Average:
    """Of a figure that changes slowly; None before it was measured.

    Attributes:
        value: the average.
    """

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        """It was measured once more."""
        self.value = value if self.value is None else self.value + _NEWEST * (value - self.value)


class Shelf:
    """Slots of all groups, by the tags of their tenants and the keys of the prefixes that they end, in one.

    Args:
        name: by which transfers and news tell it from others.
        known: those that it has at the start, with their groups.
        most_writing: how many slots may be on their way to it; others are not written. 0: it is only read.
        keeps: those that are kept there on request; None: it promises nothing.
        places: where it has them; without, in the store of its name.

    Attributes:
        written, dropped: how many slots were written, and how many were not since it was too slow, or failed.
        read_slots, lost: how many were read, and how many of those that should have been there could not be.
    """

    def __init__(
        self,
        name: ShelfName,
        transfers: Transfers,
        known: Iterable[Slot],
        most_writing: int,
        keeps: Keeps | None = None,
        places: Places | None = None,
    ) -> None:
        self.name = name
        self.keeps = keeps
        if places is None:
            if name == "memory":
                raise ValueError("memory has numbered blocks, so that it needs places")
            places = Elsewhere(name)
        self._places = places
        self._transfers = transfers
        self._there = set(known)
        self._writing: dict[Batch, tuple[int, bytes]] = {}
        self._under_way: set[tuple[int, bytes]] = set()
        self._most_writing = most_writing
        # What it is told to keep, and whether it was to be there already.
        self._keeping: dict[Batch, tuple[Slot, bool]] = {}
        self._missed: list[tuple[Slot, float]] = []
        self._reading = 0
        self._being_read: dict[Batch, list[tuple[int, bytes]]] = {}
        # How many readings are under way that no request waits for any more.
        self._silent = 0
        self._slot_seconds = Average()
        self._measured = 0.0
        self.written = self.dropped = self.read_slots = self.lost = 0

    def totals(self) -> ShelfTotals:
        """What it has, and what became of slots."""
        kept = 0 if self.keeps is None else len(self.keeps)
        return ShelfTotals(self.name, len(self._there), self.written, self.dropped, self.read_slots, self.lost, kept)

    def has(self, group: int, key: bytes) -> bool:
        """Whether the slot is there to be read, as far as is known; nothing is while a reading was given up."""
        return (group, key) in self._there and not self._silent

    def takes(self, slots: int) -> float | None:
        """How many seconds until this number of slots is read, behind those on their way; None: never measured."""
        slot = self._slot_seconds.value
        if slot is None:
            return None
        age = self._transfers.now - self._measured
        return (self._reading + slots) * slot * math.pow(0.5, age / _HALF_LIFE)

    def was_given_up(self) -> None:
        """A request has waited long enough for what is being read. Nothing is read before that is over."""
        self._silent += 1

    def read_takes(self, seconds: float) -> None:
        """A slot was read in this number of seconds."""
        now = self._transfers.now
        if now - self._measured > _HALF_LIFE:
            self._slot_seconds = Average()
        self._slot_seconds.add(seconds)
        self._measured = now

    def write(self, group: int, key: bytes, blocks: tuple[int, ...], weight: float = 0.0) -> None:
        """The plan in the making copies a published slot here, unless it is here, or too many are on their way."""
        slot = (group, key)
        if not self._most_writing or slot in self._there or slot in self._under_way:
            return
        if len(self._writing) >= self._most_writing:
            self.dropped += 1
            return
        place, gone = self._places.take(slot, len(blocks), weight)
        self._there.difference_update(gone)
        if place is None:
            self.dropped += 1
            return
        batch = Batch(awaited=False)
        self._transfers.add(batch, group, Place("pool", blocks), place)
        self._writing[batch] = slot
        self._under_way.add(slot)

    def read(self, batch: Batch, group: int, key: bytes, blocks: tuple[int, ...]) -> int:
        """The plan in the making copies a slot into the pool; the id of the transfer."""
        self._reading += 1
        self._being_read.setdefault(batch, []).append((group, key))
        return self._transfers.add(batch, group, self._places.begin_reading((group, key)), Place("pool", blocks))

    def keep(self, slot: Slot, seconds: float) -> bool:
        """The plan in the making has a slot kept for `seconds`, again from each use on.

        False where it is neither there nor on its way, or too much is kept already.
        """
        if self.keeps is None or not (slot in self._there or slot in self._under_way):
            return False
        return self.keeps.keep(slot, seconds) and self._keep_on(slot)

    def use(self, slot: Slot) -> None:
        """A slot is used: where it is kept, so it is from now on."""
        if self.keeps is not None and self.keeps.use(slot):
            self._keep_on(slot)

    def _keep_on(self, slot: Slot) -> bool:
        assert self.keeps is not None, "it is asked first"
        seconds = self.keeps.to_tell(slot)
        # Memory promises nothing.
        if seconds is not None and self.name != "memory":
            batch, place = Batch(awaited=False), Place(self.name, (), slot[1])
            self._transfers.add(batch, slot[0], place, place, seconds)
            self._keeping[batch] = slot, slot in self._there
        return True

    def lose(self, slot: Slot) -> None:
        """A slot has shown not to be there."""
        self._gone(slot)

    def _gone(self, slot: Slot) -> None:
        self._there.discard(slot)
        if self.keeps is None:
            return
        # Where it was kept and had to go, there is no room: to write it again would cost another one that is kept.
        had_to_go = self.keeps.is_sure(slot)
        seconds = self.keeps.forget(slot)
        if seconds and not had_to_go:
            self._missed.append((slot, seconds))

    def was_read(self, count: int, failed: Collection[tuple[int, bytes]], seconds: float, *, given_up: bool) -> None:
        """The reading of `count` slots is over; those that failed are not there, the others took `seconds` together."""
        self._reading -= count
        self._silent -= given_up
        self.lost += len(failed)
        self.read_slots += count - len(failed)
        for slot in failed:
            self._gone(slot)
            self._places.forget(slot)
        if count > len(failed):
            self.read_takes(seconds / (count - len(failed)))

    def settle(self, over: Iterable[Batch]) -> list[Slot]:
        """Of the batches that are over, what was written is here now, and returned; what was read may make room."""
        written = []
        for batch in over:
            for each in self._being_read.pop(batch, ()):
                self._places.end_reading(each)
            slot = self._writing.pop(batch, None)
            if slot is not None:
                self._places.written(slot, done=not batch.failed)
                self._under_way.discard(slot)
                self.written += not batch.failed
                self.dropped += batch.failed
                if not batch.failed:
                    self._there.add(slot)
                    written.append(slot)
                continue
            if batch in self._keeping:
                self._kept(*self._keeping.pop(batch), done=not batch.failed)
        return written

    def _kept(self, slot: Slot, was_there: bool, *, done: bool) -> None:
        """Whether a slot was there to be kept."""
        assert self.keeps is not None, "it is asked first"
        if done:
            self.keeps.confirm(slot)
            return
        if was_there:
            self._gone(slot)
        else:
            # It could not be written, and is not tried again.
            self.keeps.forget(slot)

    def take_missed(self) -> list[tuple[Slot, float]]:
        """What was to be kept and was not there, against the books, with the seconds; since this was asked before."""
        missed, self._missed = self._missed, []
        return missed

    def told(self, news: Iterable[Shelved]) -> None:
        """It has, or has no more, what those of these say that are of it."""
        for each in news:
            if each.shelf != self.name:
                continue
            if each.there:
                self._there.add((each.group, each.key))
            else:
                self._gone((each.group, each.key))

    def check(self) -> None:
        """Raise RuntimeError where its books are wrong."""
        self._places.check()
