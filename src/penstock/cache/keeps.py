"""Slots of a shelf that are to stay there until a time; there is a bound of their bytes."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Slot = tuple[int, bytes]
"""Of a group, by the key of the prefix that it ends."""


@dataclass(slots=True)
class _Keep:
    """How long a slot is kept: until then, and for how many seconds from its next use on.

    Attributes:
        told: until when the shelf was told to keep it.
        sure: whether it has said that it does.
    """

    until: float
    seconds: float
    told: float = 0.0
    sure: bool = False


class Keeps:
    """The books of one shelf; times are seconds on the scheduler's clock.

    Args:
        most_bytes: how much may be kept.
        slot_bytes: bytes of a slot of a group.
        left: those that were kept before, with the seconds that are left to each from the first time that is told.
            Their next uses count for no more than these.
    """

    def __init__(
        self, most_bytes: int, slot_bytes: Callable[[int], int], left: Mapping[Slot, float] | None = None
    ) -> None:
        self._most = most_bytes
        self._slot_bytes = slot_bytes
        self._left = left or {}
        self._kept: dict[Slot, _Keep] = {}
        # What has passed here may be out of date: a use of the slot has moved its deadline.
        self._deadlines: list[tuple[float, Slot]] = []
        self._now: float | None = None
        self._confirmed: list[Slot] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, slot: object) -> bool:
        return slot in self._kept

    def tick(self, now: float) -> None:
        """It is `now`, on a clock that never goes back: what was to be kept until now no longer is."""
        if self._now is None:
            for slot, seconds in self._left.items():
                self._add(slot, now, seconds)
                self._kept[slot].sure = True
            self._left = {}
        self._now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            _, slot = heapq.heappop(self._deadlines)
            keep = self._kept.get(slot)
            if keep is not None and keep.until <= now:
                self.forget(slot)

    def keep(self, slot: Slot, seconds: float) -> bool:
        """Keep a slot for `seconds`, again from each use on; False where too much is kept already."""
        now = self._now or 0.0
        keep = self._kept.get(slot)
        if keep is None:
            if self.bytes + self._slot_bytes(slot[0]) > self._most:
                return False
            self._add(slot, now, seconds)
        else:
            keep.seconds = max(keep.seconds, seconds)
            self._move(slot, keep, now)
        return True

    def use(self, slot: Slot) -> bool:
        """A slot is used; whether it is kept, and so from now on."""
        keep = self._kept.get(slot)
        if keep is None:
            return False
        self._move(slot, keep, self._now or 0.0)
        return True

    def to_tell(self, slot: Slot) -> float | None:
        """Seconds for which a slot is kept from now on; None where that has been told."""
        keep = self._kept[slot]
        if keep.told == keep.until:
            return None
        keep.told = keep.until
        return keep.until - (self._now or 0.0)

    def is_sure(self, slot: Slot) -> bool:
        """Whether the shelf has said that it keeps a slot."""
        keep = self._kept.get(slot)
        return keep is not None and keep.sure

    def confirm(self, slot: Slot) -> None:
        """The shelf has said that it keeps a slot."""
        keep = self._kept.get(slot)
        if keep is not None and not keep.sure:
            keep.sure = True
            self._confirmed.append(slot)

    def take_confirmed(self) -> list[Slot]:
        """Those that the shelf has confirmed since this was asked before."""
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def forget(self, slot: Slot) -> float:
        """A slot is not kept any more; for how many seconds from each use on it was, 0 where it was not."""
        keep = self._kept.pop(slot, None)
        if keep is None:
            return 0.0
        self.bytes -= self._slot_bytes(slot[0])
        return keep.seconds

    def _add(self, slot: Slot, now: float, seconds: float) -> None:
        self._kept[slot] = keep = _Keep(now, seconds)
        self.bytes += self._slot_bytes(slot[0])
        self._move(slot, keep, now)

    def _move(self, slot: Slot, keep: _Keep, now: float) -> None:
        keep.until = max(keep.until, now + keep.seconds)
        heapq.heappush(self._deadlines, (keep.until, slot))
        if len(self._deadlines) > 2 * len(self._kept) + 64:
            self._deadlines = [(each.until, slot) for slot, each in self._kept.items()]
            heapq.heapify(self._deadlines)
