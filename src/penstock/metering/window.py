"""What was used in the last seconds, in slots of time."""

from collections.abc import Mapping
from math import floor

# Of a window. A slot counts until the last moment in it is too old, so that a window is longer by at most one of them.
SLOTS = 120


def slot_of(now: float, seconds: float) -> int:
    """The number of the slot that a moment is in, for windows of this length."""
    return floor(now * SLOTS / seconds)


class Window:
    """Amounts by slot: whatever moment is looked at, none of the last `seconds` is missing.

    A bound that holds here holds in every interval of this length, wherever it begins. A bucket that fills again lets
    twice as much pass in some.
    """

    def __init__(self, seconds: float, slots: Mapping[int, int] | None = None) -> None:
        self.seconds = seconds
        self.slots: dict[int, int] = dict(slots or {})
        self.used = sum(self.slots.values())

    def look(self, now: float) -> int:
        """What was used within the window that ends now."""
        oldest = slot_of(now, self.seconds) - SLOTS
        # In their order, but for what was put into an older one.
        for slot in [each for each in self.slots if each < oldest]:
            self.used -= self.slots.pop(slot)
        return self.used

    def add(self, amount: int, slot: int) -> None:
        """Use more of a slot, or less. What was in one that has gone is not missed."""
        self.slots[slot] = self.slots.get(slot, 0) + amount
        self.used += amount

    def correct(self, used: int, now: float) -> None:
        """So much was used within the window that ends now, whatever was added; less is less of the oldest."""
        more = used - self.look(now)
        if more > 0:
            self.add(more, slot_of(now, self.seconds))
        for slot in sorted(self.slots) if more < 0 else ():
            less = min(self.slots[slot], -more)
            self.add(-less, slot)
            more += less

    def wait(self, amount: int, most: int, now: float) -> float:
        """Seconds until `amount` more can be used without being over `most`; infinite where it never can."""
        left = self.look(now) + amount - most
        if left <= 0:
            return 0.0
        for slot in sorted(self.slots):
            left -= self.slots[slot]
            if left <= 0:
                return (slot + SLOTS + 1) * self.seconds / SLOTS - now
        return float("inf")
