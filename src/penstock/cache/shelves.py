"""Shelves beyond the pool, fastest first: what is published goes to each, and comes back from the first that has it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.cache.shelf import Average, Shelf
from penstock.cache.transfers import Batch
from penstock.core.events import ShelfTotals
from penstock.core.plan import Shelved

# Tokens of prompts in a step that tells how long they take: of fewer, the step's own cost is the larger part.
_LEAST_TOKENS = 64
# Reading must be expected to take no more than this share of computing: a wrong guess makes a request wait.
_MOST_SHARE = 0.8
# For what is read, a request waits so long at least, in seconds, and as long as it would take to compute it.
_LEAST_PATIENCE = 1.0
_PATIENCE = 5.0

Slot = tuple[int, bytes]
"""Of a group, by the key of the prefix that it ends."""


@dataclass(slots=True)
class Reading:
    """Slots that are read together.

    Attributes:
        batch: their transfers.
        slots: by the id of each transfer, the shelf and the slot.
        given_up: shelves that had not given all of theirs when a request had waited long enough.
    """

    batch: Batch = field(default_factory=Batch)
    slots: dict[int, tuple[Shelf, Slot]] = field(default_factory=dict)
    given_up: set[Shelf] = field(default_factory=set)


class Shelves:
    """An ordered sequence of shelves, and whether to read from them pays. There may be none.

    Attributes:
        ordered: the fastest first.
    """

    def __init__(self, ordered: Sequence[Shelf] = ()) -> None:
        self.ordered = tuple(ordered)
        self._token_seconds = Average()
        self._faster = Shelves(ordered[:-1]) if len(ordered) > 1 else None

    def choices(self) -> Iterator["Shelves"]:
        """All of them, then all but the slowest, and so on: what they have together may not pay for the slowest."""
        yield self
        if self._faster is not None:
            yield from self._faster.choices()

    def __bool__(self) -> bool:
        return bool(self.ordered)

    def totals(self) -> tuple[ShelfTotals, ...]:
        """What each has, and what became of slots."""
        return tuple(shelf.totals() for shelf in self.ordered)

    def has(self, group: int, key: bytes) -> bool:
        """Whether one has the slot, as far as is known."""
        return any(shelf.has(group, key) for shelf in self.ordered)

    def _first_with(self, slot: Slot) -> Shelf:
        return next(shelf for shelf in self.ordered if shelf.has(*slot))

    def pays(self, tokens: int, slots: Iterable[Slot]) -> bool:
        """Whether to read these slots, which are there, takes less time than to compute their tokens.

        Where either was never measured it is tried.
        """
        counts = Counter(self._first_with(slot) for slot in slots)
        times = [shelf.takes(count) for shelf, count in counts.items()]
        token = self._token_seconds.value
        if token is None or None in times:
            return True
        return sum(seconds for seconds in times if seconds is not None) <= _MOST_SHARE * tokens * token

    def patience(self, tokens: int) -> float:
        """How many seconds to wait for this number of tokens before they are computed after all."""
        token = self._token_seconds.value
        return _PATIENCE if token is None else max(_LEAST_PATIENCE, tokens * token)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed this number of tokens of prompts, and little else."""
        if tokens >= _LEAST_TOKENS and seconds > 0:
            for shelves in self.choices():
                shelves._token_seconds.add(seconds / tokens)

    def write(self, group: int, key: bytes, blocks: tuple[int, ...], weight: float = 1.0) -> None:
        """The plan in the making copies a published slot, of a tenant of that weight, to each that has it not."""
        for shelf in self.ordered:
            shelf.write(group, key, blocks, weight)

    def read(self, reading: Reading, group: int, key: bytes, blocks: tuple[int, ...]) -> int:
        """The plan in the making copies a slot that is there into the pool; the id of the transfer."""
        shelf = self._first_with((group, key))
        transfer = shelf.read(reading.batch, group, key, blocks)
        reading.slots[transfer] = shelf, (group, key)
        return transfer

    def give_up(self, reading: Reading) -> None:
        """No request waits any more for what of it is not there by now."""
        late = {shelf for transfer, (shelf, _) in reading.slots.items() if transfer not in reading.batch.seconds}
        for shelf in late - reading.given_up:
            shelf.was_given_up()
        reading.given_up |= late

    def was_read(self, reading: Reading) -> None:
        """The reading is over; what failed is not there."""
        batch = reading.batch
        of_shelf: Mapping[Shelf, list[int]] = defaultdict(list)
        for transfer, (shelf, _) in reading.slots.items():
            of_shelf[shelf].append(transfer)
        for shelf, transfers in of_shelf.items():
            failed = [reading.slots[each][1] for each in transfers if each in batch.failures]
            seconds = sum(batch.seconds[each] for each in transfers if each not in batch.failures)
            shelf.was_read(len(transfers), failed, seconds, given_up=shelf in reading.given_up)

    def check(self) -> None:
        """Raise RuntimeError where the books of one are wrong."""
        for shelf in self.ordered:
            shelf.check()

    def count_hits(self, reading: Reading, depths: Mapping[int, int], gained: range, tokens: int) -> None:
        """At each of these depths, `tokens` tokens were read instead of computed; `depths` are those of the transfers.

        Where no group needs what is at a depth, the next one that was read counts for it.
        """
        shelf_of = {depth: reading.slots[transfer][0] for transfer, depth in depths.items()}
        shelf = None
        for depth in reversed(gained):
            shelf = shelf_of.get(depth, shelf)
            if shelf is not None:
                shelf.hit_tokens += tokens

    def settle(self, over: Iterable[Batch]) -> None:
        """Of the batches that are over, those that were written are on their shelves now."""
        for shelf in self.ordered:
            shelf.settle(over)

    def told(self, news: Iterable[Shelved]) -> None:
        """Shelves have, or have no more, what these say."""
        for shelf in self.ordered:
            shelf.told(news)
