"""Shelves beyond the pool, fastest first: what is published goes to each, and comes back from the first that has it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.cache.keeps import Slot
from penstock.cache.shelf import Average, Shelf
from penstock.cache.transfers import Batch
from penstock.core.events import ShelfTotals
from penstock.core.plan import ShelfName, Shelved

# Tokens of prompts in a step that tells how long they take: of fewer, the step's own cost is the larger part.
_LEAST_TOKENS = 64
# Reading must be expected to take no more than this share of computing: a wrong guess makes a request wait.
_MOST_SHARE = 0.8
# For what is read, a request waits so long at least, in seconds, and as long as it would take to compute it.
_LEAST_PATIENCE = 1.0
_PATIENCE = 5.0


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

    def first_with(self, slot: Slot) -> Shelf | None:
        """The fastest that has the slot; None where none has."""
        return next((shelf for shelf in self.ordered if shelf.has(*slot)), None)

    def _first_with(self, slot: Slot) -> Shelf:
        shelf = self.first_with(slot)
        assert shelf is not None, "nothing is asked for that no shelf has"
        return shelf

    def pays(self, tokens: int, slots: Iterable[Slot]) -> bool:
        """Whether to read these slots, which are there, takes less time than to compute their tokens.

        Where either was never measured it is tried.
        """
        counts = Counter(self._first_with(slot) for slot in slots)
        times = [shelf.takes(count) for shelf, count in counts.items()]
        computing = self.computing_takes(tokens)
        if computing is None or None in times:
            return True
        return sum(seconds for seconds in times if seconds is not None) <= _MOST_SHARE * computing

    def computing_takes(self, tokens: int) -> float | None:
        """How many seconds it takes to compute this number of tokens; None: never measured."""
        token = self._token_seconds.value
        return None if token is None else tokens * token

    def patience(self, tokens: int) -> float:
        """How many seconds to wait for this number of tokens before they are computed after all."""
        computing = self.computing_takes(tokens)
        return _PATIENCE if computing is None else max(_LEAST_PATIENCE, computing)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed this number of tokens of prompts, and little else."""
        if tokens >= _LEAST_TOKENS and seconds > 0:
            for shelves in self.choices():
                shelves._token_seconds.add(seconds / tokens)

    def write(self, group: int, key: bytes, blocks: tuple[int, ...], weight: float = 0.0) -> None:
        """The plan in the making copies a published slot, of a tenant of that weight, to each that has it not.

        0: the weight is as it was.
        """
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

    @property
    def keep_any(self) -> bool:
        """Whether one keeps slots on request."""
        return any(shelf.keeps is not None for shelf in self.ordered)

    def tick(self, now: float) -> None:
        """It is `now`, in seconds: what was to be kept until now no longer is."""
        for shelf in self.ordered:
            if shelf.keeps is not None:
                shelf.keeps.tick(now)

    def keep(self, slot: Slot, seconds: float) -> bool:
        """The plan in the making has the fastest that can keep a slot for `seconds`; False where none can."""
        return any(shelf.keep(slot, seconds) for shelf in self.ordered)

    def is_kept(self, slot: Slot) -> bool:
        """Whether one keeps the slot."""
        return any(shelf.keeps is not None and slot in shelf.keeps for shelf in self.ordered)

    def is_sure(self, slot: Slot) -> bool:
        """Whether one has said that it keeps the slot."""
        return any(shelf.keeps is not None and shelf.keeps.is_sure(slot) for shelf in self.ordered)

    def take_confirmed(self) -> list[Slot]:
        """Those slots that one has confirmed to keep since this was asked before."""
        return [slot for shelf in self.ordered if shelf.keeps is not None for slot in shelf.keeps.take_confirmed()]

    def use(self, slot: Slot) -> None:
        """A slot is used: where it is kept, so it is from now on."""
        for shelf in self.ordered:
            shelf.use(slot)

    def take_missed(self) -> list[tuple[Slot, float]]:
        """What was to be kept and was not there, with the seconds; since this was asked before."""
        return [each for shelf in self.ordered for each in shelf.take_missed()]

    def settle(self, over: Iterable[Batch]) -> dict[ShelfName, list[Slot]]:
        """Of the batches that are over, those that were written are on their shelves now, and returned."""
        return {shelf.name: slots for shelf in self.ordered if (slots := shelf.settle(over))}

    def told(self, news: Iterable[Shelved]) -> None:
        """Shelves have, or have no more, what these say."""
        for shelf in self.ordered:
            shelf.told(news)
