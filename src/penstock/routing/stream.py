"""A replica's events as they arrive: in order or not, twice or not at all, or from the first, where it began anew.

Batches are numbered from 0 on, one after the other. What is missing can be asked for again, as far as the replica keeps
it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.core.kv_events import Cleared, KVEvent
from penstock.routing.feed import Feed

# Events that are taken in before others have their turn.
_AT_A_TIME = 2_000
# Batches that are held while one before them is awaited.
MOST_HELD = 10_000


class Batch(NamedTuple):
    """Events of one step.

    Attributes:
        number: of the batch.
        at: when it was sent, in seconds on the replica's clock.
        instance: of the replica, another one each time that it begins; empty where the replica does not say it. Then
            it may begin anew unseen, if its first batches are lost.
    """

    number: int
    at: float
    events: Sequence[KVEvent]
    instance: str = ""


class Exactness(StrEnum):
    """How well a replica's cache is known."""

    EXACT = "exact"
    # Something is missing: what is known, is there, but there may be more.
    DEGRADED = "degraded"
    # It tells nothing: what was sent to it is taken to be there.
    APPROXIMATE = "approximate"


class EventStream:
    """Puts the batches of one replica in order for its feed.

    Attributes:
        lost: batches that could not be had again.
        restarts: how often the replica was seen to begin anew.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._expected = 0
        self._newest = float("-inf")
        self._instance: str | None = None
        self._held: dict[int, Batch] = {}
        # Whether it is known from its first batch on, or from a later one that told all that was there.
        self._whole = False
        self.lost = self.restarts = 0

    @property
    def exactness(self) -> Exactness:
        """Whether what is known is what the replica has."""
        return Exactness.DEGRADED if self.is_broken or self._held else Exactness.EXACT

    @property
    def expected(self) -> int:
        """The number of the first batch that has not come yet."""
        return self._expected

    @property
    def is_broken(self) -> bool:
        """Whether something was lost, so that only what begins anew is of help."""
        return not self._whole or bool(self._feed.orphans)

    def begin_anew(self) -> None:
        """Forget all; every batch is to be asked for again."""
        self._begin_at(0)

    def take(self, batch: Batch) -> int | None:
        """A batch that was sent now; the number from which on batches are to be asked for again, if any are missing."""
        # No batch is sent later than one behind it, unless the numbers began anew.
        later = batch.at > self._newest
        if later and (batch.number < self._expected or batch.instance != (self._instance or batch.instance)):
            self.restarts += 1
            self._begin_at(0)
        elif batch.instance != (self._instance or batch.instance):
            # It was on its way from before.
            return None
        self._instance = batch.instance
        self._newest = max(self._newest, batch.at)
        if batch.number < self._expected:
            return None
        self._held[batch.number] = batch
        self._take_all_held()
        if not self._held:
            return None
        if len(self._held) > MOST_HELD:
            self._give_up()
            return None
        return self._expected

    @property
    def instance(self) -> str:
        """Of the replica, as far as it is known."""
        return self._instance or ""

    def take_again(self, batches: Sequence[Batch]) -> Iterator[None]:
        """What the replica sent again when it was asked: all that it still has, in order.

        It is taken in piece by piece, and nothing else may be until it is whole.
        """
        for batch in batches:
            if batch.number >= self._expected and batch.instance == self.instance:
                self._held[batch.number] = batch
                # What was sent before may still be on its way.
                self._newest = max(self._newest, batch.at)
        yield from self._take_held()
        if self._held:
            # It does not have what is missing.
            self._give_up()
        elif not self._expected:
            # Nothing has happened yet.
            self._whole = True

    def _take_all_held(self) -> None:
        for _ in self._take_held():
            pass

    def _take_held(self) -> Iterator[None]:
        # What began anew needs nothing of before.
        whole = [
            number for number, batch in self._held.items() if batch.events and isinstance(batch.events[0], Cleared)
        ]
        if whole and (last := max(whole)) > self._expected:
            self._expected = last
            self._held = {number: batch for number, batch in self._held.items() if number >= last}
        while (batch := self._held.pop(self._expected, None)) is not None:
            if not batch.number or (batch.events and isinstance(batch.events[0], Cleared)):
                self._whole = True
            for first in range(0, len(batch.events), _AT_A_TIME):
                self._feed.take(batch.events[first : first + _AT_A_TIME])
                yield
            self._expected += 1

    def give_up(self) -> None:
        """Nothing is sent again: go on without what is missing."""
        if self._held:
            self._give_up()
        else:
            # What was told last is lost.
            self._begin_at(self._expected)

    def _give_up(self) -> None:
        """Go on without what is missing; nothing that came before it is relied on any longer."""
        first = min(self._held)
        self.lost += first - self._expected
        held = self._held
        self._begin_at(first)
        self._held = held
        self._take_all_held()
        if self._held:
            self._give_up()

    def _begin_at(self, number: int) -> None:
        self._feed.restart()
        self._expected, self._held, self._whole = number, {}, False
