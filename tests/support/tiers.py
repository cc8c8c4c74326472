"""What tiers are tested with: a pool of slots, and stores in memory that fail when they are told to, or at random."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

from penstock.cache.shelf_room import Name
from penstock.runtime.storage import Used
from penstock.stepping.storage import Copied
from support.waiting import until

SIZE = 100


class Pool:
    """Blocks of a pool, each a slot, with the number of copies that were made."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytearray] = defaultdict(lambda: bytearray(b"x" * SIZE))
        self.copies = 0

    def copied(self, blocks: Sequence[int], used: Callable[[memoryview], None]) -> Copied | None:
        self.copies += 1
        (block,) = blocks
        used(memoryview(self.blocks[block]))
        return Used()

    def begin_copies(self) -> None:
        pass

    def put_slots(self, slots: Sequence[tuple[Sequence[int], bytes | bytearray]]) -> None:
        for (block,), content in slots:
            self.blocks[block] = bytearray(content)


class Others:
    """A store in memory that others write to, and that fails, or is slow, when it is told to."""

    parallel = 2
    failures: tuple[type[Exception], ...] = (OSError,)
    refusals: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self.values: dict[Name, bytes] = {}
        self.away = False
        self.looks = 0

    def _answer(self) -> None:
        if self.away:
            raise ConnectionError("nobody is there")

    def names(self) -> list[Name]:
        self.looks += 1
        self._answer()
        return list(self.values)

    def get(self, name: Name, most: int) -> bytes | None:
        self._answer()
        return self.values.get(name)

    def put(self, name: Name, value: bytes | bytearray, weight: float = 1.0) -> list[Name]:
        self._answer()
        self.values[name] = bytes(value)
        return []

    def look(self) -> None:
        """Until it has been looked at anew, from the beginning to the end."""
        begun = self.looks
        until(lambda: self.looks >= begun + 2)


class Fickle(Others):
    """It fails, loses, spoils and mixes up at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._luck = random.Random(seed)
        self.rests = False

    def _answer(self) -> None:
        luck = 1.0 if self.rests else self._luck.random()
        if luck < 0.1:
            raise ConnectionError("it does not work today")
        if luck < 0.15:
            raise ValueError("nobody foresaw this")

    def get(self, name: Name, most: int) -> bytes | None:
        self._answer()
        value, luck = self.values.get(name), self._luck.random()
        if value is None or luck < 0.1:
            return None
        if luck < 0.2:
            return value[:-1] + bytes([value[-1] ^ 1])
        return self.values[self._luck.choice(list(self.values))] if luck < 0.3 else value
