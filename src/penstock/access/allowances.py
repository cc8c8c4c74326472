"""What may be used: each request reserves before it begins, and settles as it ends."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.metering.meters import Charge, Meter, Meters, Refusal, Reservation

_FORGET_SECONDS = 60.0


class Allowances(Protocol):
    """Where meters are kept; `group` is what a request's meters have in common.

    Attributes:
        apart: why a gateway goes on with a part of what it shares with others; None while it does not.
    """

    apart: str | None

    async def reserve(self, group: str, charges: Sequence[Charge]) -> Reservation | Refusal:
        """Reserve all of it, or nothing."""

    def settle(self, group: str, reservation: Reservation, amounts: Sequence[int]) -> None:
        """What was used instead, of each meter. Only the first call counts."""

    async def at_least(self, group: str, meter: Meter, used: int) -> None:
        """So much of a budget is used, where less is counted."""

    async def look(self, group: str, meters: Sequence[Meter]) -> Sequence[int]:
        """What counts of each meter now; nothing is reserved."""


class OwnAllowances:
    """Those of one gateway, in memory.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.apart: str | None = None
        self._clock = clock
        self._meters = Meters()
        self._forgotten = clock()

    async def reserve(self, group: str, charges: Sequence[Charge]) -> Reservation | Refusal:
        """Reserve all of it, or nothing."""
        now = self._clock()
        if now - self._forgotten > _FORGET_SECONDS:
            self._forgotten = now
            self._meters.forget(now)
        return self._meters.reserve(charges, now)

    def settle(self, group: str, reservation: Reservation, amounts: Sequence[int]) -> None:
        """What was used instead, of each meter."""
        self._meters.settle(reservation, amounts, self._clock())

    async def at_least(self, group: str, meter: Meter, used: int) -> None:
        """So much of a budget is used, where less is counted."""
        now = self._clock()
        self._meters.add(meter, max(0, used - self._meters.used(meter, now)), now)

    async def look(self, group: str, meters: Sequence[Meter]) -> Sequence[int]:
        """What counts of each meter now; nothing is reserved."""
        return [self.used(meter) for meter in meters]

    def used(self, meter: Meter) -> int:
        """What counts of a meter now."""
        return self._meters.used(meter, self._clock())
