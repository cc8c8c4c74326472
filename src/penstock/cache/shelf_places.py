"""Where a shelf keeps its slots: in a store that finds them by their keys, or in blocks of the processor's memory."""

from collections.abc import Sequence
from itertools import count
from typing import Protocol

from penstock.cache.shelf_room import Name, ShelfRoom
from penstock.core.plan import Place, Store


class Places(Protocol):
    """Places of a shelf's slots."""

    def take(self, name: Name, width: int, weight: float) -> tuple[Place | None, Sequence[Name]]:
        """A place for a slot of `width` blocks, of a tenant of this weight, and slots that had to go for it.

        None: there is no room.
        """

    def written(self, name: Name, *, done: bool) -> None:
        """The slot is in its place; not `done`: it is not."""

    def begin_reading(self, name: Name) -> Place:
        """Where a slot is that is read, and stays meanwhile."""

    def end_reading(self, name: Name) -> None:
        """It has been read, or could not be."""

    def forget(self, name: Name) -> None:
        """A slot is of no use: what was read was not it."""

    def check(self) -> None:
        """Raise RuntimeError where the books are wrong."""


class Elsewhere:
    """Slots of a store that makes room by itself, and finds them by their keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, name: Name, width: int, weight: float) -> tuple[Place | None, Sequence[Name]]:
        """The store has room, or says later that it has none."""
        return Place(self._store, (), name[1], weight), ()

    def written(self, name: Name, *, done: bool) -> None:
        """The store has books of its own of what it has."""

    def begin_reading(self, name: Name) -> Place:
        """See `Places`; the store finds it by its key."""
        return Place(self._store, (), name[1])

    def end_reading(self, name: Name) -> None:
        """The store has books of its own of what is used."""

    def forget(self, name: Name) -> None:
        """The store has found that out by itself."""

    def check(self) -> None:
        """There are no books that could be wrong."""


class HostPlaces:
    """Blocks of the processor's memory, from `first` on; `ShelfRoom` says whose slots make room.

    free + those of slots that are there, are written or are read = total. Only what is neither written nor read can go,
    since a plan that is outstanding may touch the others.
    """

    def __init__(self, first: int, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._first = first
        self._free = list(range(first + num_blocks - 1, first - 1, -1))
        self._blocks: dict[Name, tuple[int, ...]] = {}
        self._weights: dict[Name, float] = {}
        self._readers: dict[Name, int] = {}
        # In blocks, with the numbers of their uses as times.
        self._room, self._uses = ShelfRoom(), count()

    @property
    def num_used(self) -> int:
        """Blocks that hold something, or will."""
        return self.num_blocks - len(self._free)

    def take(self, name: Name, width: int, weight: float) -> tuple[Place | None, Sequence[Name]]:
        """See `Places`."""
        gone: list[Name] = []
        # Of one that was of no use, a reader may still have the blocks.
        if name in self._readers:
            return None, gone
        self.forget(name)
        while len(self._free) < width:
            other = self._room.first_to_go(name, width, weight)
            if other is None:
                return None, gone
            self._room.remove(other)
            self._give_back(other)
            gone.append(other)
        # In ascending order, neighbours are copied together.
        blocks = tuple(sorted(self._free.pop() for _ in range(width)))
        self._blocks[name], self._weights[name] = blocks, weight
        return Place("host", blocks, name[1], weight), gone

    def written(self, name: Name, *, done: bool) -> None:
        """See `Places`."""
        if done:
            self._settle(name)
        else:
            self._give_back(name)

    def begin_reading(self, name: Name) -> Place:
        """See `Places`."""
        self._room.remove(name)
        self._readers[name] = self._readers.get(name, 0) + 1
        return Place("host", self._blocks[name], name[1])

    def end_reading(self, name: Name) -> None:
        """See `Places`."""
        self._readers[name] -= 1
        if not self._readers[name]:
            del self._readers[name]
            self._settle(name)

    def forget(self, name: Name) -> None:
        """See `Places`; where it is read by others it goes when they have it."""
        if self._room.remove(name):
            self._give_back(name)

    def _settle(self, name: Name) -> None:
        """It may go from now on; it was used just now."""
        self._room.add(name, len(self._blocks[name]), next(self._uses), self._weights[name])

    def _give_back(self, name: Name) -> None:
        del self._weights[name]
        self._free += sorted(self._blocks.pop(name), reverse=True)

    def check(self) -> None:
        """Raise RuntimeError unless every block is free, or of one slot."""
        held = [block for blocks in self._blocks.values() for block in blocks]
        if sorted(self._free + held) != list(range(self._first, self._first + self.num_blocks)):
            raise RuntimeError("a host block of a shelf is lost, or in two states at once")
