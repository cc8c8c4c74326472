"""How many requests may be sent a second time: a part of all, so that trouble does not multiply them."""

import msgspec


class RetryBudget(msgspec.Struct):
    """A balance that each request adds to and each retry takes from (as in Finagle's RetryBudget).

    What is not used is lost with time: the balance never exceeds what a period of requests adds.

    Attributes:
        part: retries for each request, in the long run.
        reserve: retries that may be made however few requests there are, in each period.
        period: seconds.
        balance: retries that may be made now.
        at: when the reserve was last added to, on the clock that `now` is of.
    """

    part: float = 0.2
    reserve: float = 10.0
    period: float = 10.0
    balance: float = 10.0
    at: float = 0.0
    _requests: float = 0.0

    def request(self, now: float) -> None:
        """A request is sent for the first time; `now` in seconds on a clock that never goes back."""
        self._pass(now)
        self._requests += 1
        self.balance = min(self._most, self.balance + self.part)

    def allows(self, now: float) -> bool:
        """Whether one may be sent again now."""
        self._pass(now)
        return self.balance >= 1

    def retry(self, now: float) -> bool:
        """Whether one may be sent again; if so, it is counted."""
        if not self.allows(now):
            return False
        self.balance -= 1
        return True

    @property
    def _most(self) -> float:
        return self.reserve + self.part * self._requests

    def _pass(self, now: float) -> None:
        """Requests are forgotten by and by, and the reserve comes back."""
        seconds = max(0.0, now - self.at)
        self.at = now
        self._requests *= 2.0 ** (-seconds / self.period)
        self.balance = min(self._most, self.balance + self.reserve * seconds / self.period)
