"""A gateway's part of meters that it shares with others, for as long as it cannot ask what they use.

What all have used counts on as it grows old, and of what is left each gateway has an equal part. So all together have
no more than the bound, but for what was used since each was told last.
"""

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from penstock.metering.meters import Charge, Meter, Meters, Refusal, Reservation
from penstock.metering.window import SLOTS, Window

# A wait is looked for at this many moments of a window.
_LOOKS = SLOTS // 4


class Share:
    """What a gateway knows of meters that it shares, and what it uses of its part while it is apart."""

    def __init__(self) -> None:
        # What all use, as far as this gateway was told, and when it was told that; what it uses itself while apart.
        self._known = Meters()
        self._moments: dict[str, float] = {}
        self._apart = Meters()

    def told(self, meter: Meter, used: int, now: float) -> None:
        """So much do all use now, this gateway among them. What was true before it was told last says nothing."""
        if now < self._moments.get(meter.name, now):
            return
        self._moments[meter.name] = now
        self._known.correct(meter, used, now)

    def at_least(self, meter: Meter, used: int, now: float, *, apart: bool) -> None:
        """So much of a budget is used in all, where less is known; what this gateway uses while `apart` is in that."""
        own = self._apart.used(meter, now) if apart else 0
        self._known.correct(meter, max(self._known.used(meter, now), used - own), now)

    def forget(self, now: float) -> None:
        """Let go of what says nothing any more."""
        self._known.forget(now)
        self._moments = {name: at for name, at in self._moments.items() if self._known.counts(name)}

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
            return Reservation(tuple(charges), now, tuple(self.used(meter, own, now) for meter, _ in charges))
        whole, amount = next(each for each in charges if each.meter.name == found.meter.name)
        return Refusal(whole, self.used(whole, own, now), self._wait(whole, amount, gateways, own, now))

    def add(self, meter: Meter, amount: int, at: float) -> None:
        """This gateway has used more, or less, while it is apart."""
        self._apart.add(meter, amount, at)

    def _part(self, meter: Meter, gateways: int, own: Meters, now: float) -> Meter:
        """The meter with what may be used of it while apart, so that what was used before does not count."""
        if meter.unit == "running":
            # Those that began before are under way here, too.
            before = own.used(meter, now) - self._apart.used(meter, now)
            return replace(meter, most=max(1, meter.most // gateways) - before)
        return replace(meter, most=max(0, meter.most - self._known.used(meter, now)) // gateways)

    def used(self, meter: Meter, own: Meters, now: float) -> int:
        """What counts of a meter, as far as this gateway knows while it is apart."""
        if meter.unit == "running":
            return own.used(meter, now)
        return self._known.used(meter, now) + self._apart.used(meter, now)

    def _wait(self, meter: Meter, amount: int, gateways: int, own: Meters, now: float) -> float:
        """Seconds until its part has room, as far as time makes it; what others used grows old, too."""
        if meter.seconds is None:
            return inf
        for look in range(1, _LOOKS + 2):
            later = now + look * meter.seconds / _LOOKS
            used = Window(meter.seconds, self._apart.slots(meter, now)).look(later)
            before = Window(meter.seconds, self._known.slots(meter, now)).look(later)
            if used + amount <= max(0, meter.most - before) // gateways:
                return later - now
        return inf
