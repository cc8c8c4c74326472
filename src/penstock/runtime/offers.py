"""Slots that a replica which computes prompts offers to others, in memory, each under a lease.

What is leased stays until its lease has run out or all who hold it have given it back; anything else makes room for
what comes.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from penstock.cache.shelf_room import Name, ShelfRoom
from penstock.runtime.offer_cells import Cells

# Names of slots that found no room, which no partner is to wait for.
_MOST_REFUSED = 1 << 14


class Offers:
    """Values of slots (`SlotStore`, `SlotKeeper`). May be used on several threads.

    Args:
        cells: memory for the values.
        clock: seconds that never go back.

    Attributes:
        cells: the same.
    """

    parallel = 1
    failures: tuple[type[Exception], ...] = ()
    refusals: tuple[type[Exception], ...] = ()

    def __init__(self, cells: Cells, clock: Callable[[], float] = time.monotonic) -> None:
        self.cells, self._clock = cells, clock
        self._room = ShelfRoom()
        # The cell of each, and its bytes.
        self._values: dict[Name, tuple[int, int]] = {}
        # Until when each has a lease who has asked for a slot since that was leased.
        self._holders: dict[Name, dict[str, float]] = {}
        self._refused: OrderedDict[Name, None] = OrderedDict()
        self._changed = threading.Condition()

    def names(self) -> list[Name]:
        """Of all that are there."""
        with self._changed:
            return list(self._values)

    def get(self, name: Name, most: int) -> bytes | None:
        """A value; None where it is not there, or longer than `most` bytes."""
        with self._changed:
            found = self._used(name, most)
            return None if found is None else self.cells.get(*found)

    def where(self, name: Name, most: int) -> tuple[int, int] | None:
        """Where a value begins in the cells' memory, and its bytes; None as of `get`."""
        with self._changed:
            found = self._used(name, most)
        return None if found is None else (self.cells.start(found[0]), found[1])

    def _used(self, name: Name, most: int) -> tuple[int, int] | None:
        found = self._values.get(name)
        if found is None or found[1] > most:
            return None
        self._room.use(name, max(self._clock(), self._room.time_of(name)))
        return found

    def put(self, name: Name, value: bytes | bytearray, weight: float = 0.0) -> Sequence[Name]:
        """Offer one; returns the names of those that had to go for it, which is its own where all others are leased."""
        now, size, gone = self._clock(), self.cells.size, list[Name]()
        with self._changed:
            self._changed.notify_all()
            if name in self._values:
                self._drop(name, keeps=True)
            while (cell := self.cells.put(value) if len(value) <= size else None) is None:
                first = self._room.first_to_go(name, size, weight, now)
                if first is None or self._room.time_of(first) > now or len(value) > size:
                    self._refuse(name)
                    return (*gone, name)
                self._drop(first)
                gone.append(first)
            self._refused.pop(name, None)
            self._room.add(name, size, max(now, self._room.time_of(name)), weight)
            self._values[name] = cell, len(value)
        return gone

    def _refuse(self, name: Name) -> None:
        self._room.remove(name)
        self._holders.pop(name, None)
        self._refused[name] = None
        if len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)

    def _drop(self, name: Name, *, keeps: bool = False) -> None:
        """Its cell may have another content; where it `keeps` its place in the room, it gets another cell at once."""
        self.cells.leave(self._values.pop(name)[0])
        if not keeps:
            self._holders.pop(name, None)
            self._room.remove(name)

    def kept(self) -> dict[Name, float]:
        """Those that are leased, with the seconds that are left."""
        with self._changed:
            now = self._clock()
            return {name: until - now for name, until in self._room.kept(now).items()}

    def expect(self, name: Name, seconds: float) -> None:
        """One will be leased for so long: from now on it makes no room, if it is there."""
        self.keep(name, seconds)

    def keep(self, name: Name, seconds: float, holder: str | None = None) -> bool:
        """Lease one for so long at least, for a `holder` or who will ask for it; False where it is not there."""
        with self._changed:
            is_there = self._room.use(name, max(self._room.time_of(name), self._clock() + seconds))
            self._hold(name, holder)
            return is_there

    def release(self, name: Name, holder: str) -> None:
        """Its lease is given back; it ends where no other holder has it."""
        with self._changed:
            others = self._holders.get(name, {})
            others.pop(holder, None)
            if not others:
                self._holders.pop(name, None)
            self._room.use(name, min(self._room.time_of(name), max((self._clock(), *others.values()))))

    def _hold(self, name: Name, holder: str | None) -> None:
        until = self._room.time_of(name)
        if holder is not None and name in self._values and until > self._clock():
            self._holders.setdefault(name, {})[holder] = until

    def find(self, names: Sequence[Name], awaited: int, seconds: float, holder: str) -> list[bool]:
        """Which of these are there, once the last `awaited` are, or found no room, or the seconds are over.

        The `holder`, who asks, has them from then on, for as long as they are leased. Slots come in their order, so
        that the last say that all have come.
        """
        last = names[len(names) - awaited :]
        with self._changed:
            self._changed.wait_for(lambda: all(each in self._values or each in self._refused for each in last), seconds)
            for each in names:
                self._hold(each, holder)
            return [each in self._values for each in names]
