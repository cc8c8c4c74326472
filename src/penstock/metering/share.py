"""A gateway's part of meters that it shares with others, for as long as it cannot ask what they use.

What all have used counts on as it grows old, and of what is left each gateway has an equal part. So all together have
no more than the bound, but for what was used since each was told last.
"""

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from penstock.metering.meters import Charge, Meter, Meters, Refusal, Reservation
from penstock.metering.window import SLOTS, Window, slot_of

# A wait is looked for at this many moments of a window.
_LOOKS = SLOTS // 4


class Share:
    """What a gateway knows of meters that it shares, and what it uses of its part while it is apart."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._totals: dict[str, int] = {}
        self._ends: dict[str, float] = {}
        self._moments: dict[str, float] = {}
        self._apart = Meters()

    def told(self, meter: Meter, used: int, now: float) -> None:
        """So much do all use now, this gateway among them. What was true before it was told last says nothing."""
        if now < self._moments.get(meter.name, now):
            return
        self._moments[meter.name] = now
        if meter.seconds is None:
            self._totals[meter.name], self._ends[meter.name] = used, meter.until
            return
        window = self._known(meter)
        more = used - window.look(now)
        if more > 0:
            window.add(more, slot_of(now, meter.seconds))
        # What was taken back: of the oldest, so that what is newest counts longest.
        for slot in sorted(window.slots) if more < 0 else ():
            less = min(window.slots[slot], -more)
            window.add(-less, slot)
            more += less

    def forget(self, now: float) -> None:
        """Let go of what says nothing any more."""
        self._windows = {name: window for name, window in self._windows.items() if window.look(now) or window.slots}
        for name in [name for name, end in self._ends.items() if end <= now]:
            del self._totals[name], self._ends[name]
        self._moments = {
            name: at for name, at in self._moments.items() if name in self._windows or name in self._totals
        }

    def part(self) -> None:
        """From now on, this gateway is apart."""
        self._apart = Meters()

    def reserve(self, charges: Sequence[Charge], gateways: int, own: Meters, now: float) -> Reservation | Refusal:
        """Reserve all of it within this gateway's part, or say which part has no room.

        Args:
            gateways: that have parts.
            own: what this gateway has under way.
        """
        parts = [Charge(self._part(meter, gateways, own, now), amount) for meter, amount in charges]
        found = self._apart.reserve(parts, now)
        if isinstance(found, Reservation):
            return Reservation(tuple(charges), now, tuple(self._used(meter, own, now) for meter, _ in charges))
        whole, amount = next(each for each in charges if each.meter.name == found.meter.name)
        return Refusal(whole, self._used(whole, own, now), self._wait(whole, amount, gateways, own, now))

    def settle(self, reservation: Reservation, amounts: Sequence[int], now: float) -> None:
        """What one has used that was reserved while this gateway was apart."""
        for (meter, reserved), amount in zip(reservation.charges, amounts, strict=True):
            self._apart.add(meter, amount - reserved, reservation.at if amount < reserved else now)

    def _part(self, meter: Meter, gateways: int, own: Meters, now: float) -> Meter:
        """The meter with what may be used of it while apart, so that what was used before does not count."""
        if meter.unit == "running":
            # Those that began before are under way here, too.
            before = own.used(meter, now) - self._apart.used(meter, now)
            return replace(meter, most=max(1, meter.most // gateways) - before)
        return replace(meter, most=max(0, meter.most - self._before(meter, now)) // gateways)

    def _before(self, meter: Meter, now: float) -> int:
        """What all used before, as far as it still counts."""
        return self._totals.get(meter.name, 0) if meter.seconds is None else self._known(meter).look(now)

    def _used(self, meter: Meter, own: Meters, now: float) -> int:
        if meter.unit == "running":
            return own.used(meter, now)
        return self._before(meter, now) + self._apart.used(meter, now)

    def _wait(self, meter: Meter, amount: int, gateways: int, own: Meters, now: float) -> float:
        """Seconds until its part has room, as far as time makes it; what others used grows old, too."""
        if meter.seconds is None:
            return inf
        for look in range(1, _LOOKS + 2):
            later = now + look * meter.seconds / _LOOKS
            used = Window(meter.seconds, self._apart.slots(meter, now)).look(later)
            before = Window(meter.seconds, self._known(meter).slots).look(later)
            if used + amount <= max(0, meter.most - before) // gateways:
                return later - now
        return inf

    def _known(self, meter: Meter) -> Window:
        assert meter.seconds is not None, "totals have no window"
        window = self._windows.get(meter.name)
        if window is None:
            window = self._windows[meter.name] = Window(meter.seconds)
        return window
