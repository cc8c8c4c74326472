"""What is told of the tiers of the prefix cache: what each had of a prompt, and what came of it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from penstock.cache.keeps import Slot
from penstock.cache.shelves import Reading, Shelves
from penstock.core.facts import TierCame, TierFound, Unread
from penstock.core.plan import SHELVES, ShelfName


def origins(shelves: Shelves, wanted: Iterable[tuple[int, Slot]], hit: int, reach: int) -> list[ShelfName]:
    """For each depth from `hit` to `reach - 1`, the shelf that it comes from: the slowest that it needs.

    `wanted` has the slots that are to be read, by the depths at which they end prefixes. At other depths a window has
    passed everything: they come with the next one.
    """
    needed: dict[int, ShelfName] = {}
    for depth, slot in wanted:
        shelf = shelves.first_with(slot)
        assert shelf is not None, "it was found there"
        needed[depth] = max(needed.get(depth, shelf.name), shelf.name, key=SHELVES.index)
    found: list[ShelfName] = []
    last = needed[max(needed)]
    for depth in range(reach - 1, hit - 1, -1):
        last = needed.get(depth, last)
        found.append(last)
    return found[::-1]


def tiers_found(
    shelves: Shelves,
    block_size: int,
    slot_bytes: Callable[[int], int],
    origin: Sequence[ShelfName],
    slots: Iterable[Slot],
    why: Unread | None,
) -> tuple[TierFound, ...]:
    """What each shelf had: for depths of these origins, these slots. `why` they are not taken; None: they are.

    `slot_bytes` are those of a group's slot on shelves.
    """
    tokens, counts, read = Counter(origin), Counter[ShelfName](), Counter[ShelfName]()
    for group, key in slots:
        shelf = shelves.first_with((group, key))
        assert shelf is not None, "it was found there"
        counts[shelf.name] += 1
        read[shelf.name] += slot_bytes(group)
    found = []
    for shelf in shelves.ordered:
        if not counts[shelf.name]:
            continue
        had = tokens[shelf.name] * block_size
        taken, left = (had, 0) if why is None else (0, had)
        expected = shelf.takes(counts[shelf.name]), shelves.computing_takes(had)
        found.append(TierFound(shelf.name, taken, read[shelf.name] if taken else 0, left, why, *expected))
    return tuple(found)


def tiers_came(
    reading: Reading,
    block_size: int,
    slot_bytes: Callable[[int], int],
    origin: Sequence[ShelfName],
    came: int | None,
) -> list[TierCame]:
    """What came from each shelf, of depths with these origins: the first `came`. None: it came too late."""
    read, seconds = Counter[ShelfName](), dict[ShelfName, float]()
    for transfer, (shelf, (group, _)) in reading.slots.items():
        seconds[shelf.name] = seconds.get(shelf.name, 0.0) + reading.batch.seconds.get(transfer, 0.0)
        if transfer not in reading.batch.failures:
            read[shelf.name] += slot_bytes(group)
    told = []
    for name, took in seconds.items():
        tokens = left = 0
        if came is not None:
            tokens = origin[:came].count(name) * block_size
            left = origin[came:].count(name) * block_size
        why: Unread | None = "late" if came is None else "failed" if left else None
        told.append(TierCame(name, tokens, left, why, read[name], took))
    return told
