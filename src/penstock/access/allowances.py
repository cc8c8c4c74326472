"""What may be used: each request reserves before it begins, and settles as it ends."""

import time
from collections.abc import Sequence
from typing import Protocol

from penstock.metering.meters import Charge, Meters, Refusal, Reservation

_FORGET_SECONDS = 60.0


class Allowances(Protocol):
    """Where meters are kept; `group` is what a request's meters have in common."""

    async def reserve(self, group: str, charges: Sequence[Charge]) -> Reservation | Refusal:
        """Reserve all of it, or nothing."""

    def settle(self, group: str, reservation: Reservation, amounts: Sequence[int]) -> None:
        """What was used instead, of each meter. Only the first call counts."""


class OwnAllowances:
    """Those of one gateway, in memory."""

    def __init__(self) -> None:
        self._meters = Meters()
        self._forgotten = time.time()

    async def reserve(self, group: str, charges: Sequence[Charge]) -> Reservation | Refusal:
        """Reserve all of it, or nothing."""
        now = time.time()
        if now - self._forgotten > _FORGET_SECONDS:
            self._forgotten = now
            self._meters.forget(now)
        return self._meters.reserve(charges, now)

    def settle(self, group: str, reservation: Reservation, amounts: Sequence[int]) -> None:
        """What was used instead, of each meter."""
        self._meters.settle(reservation, amounts, time.time())
