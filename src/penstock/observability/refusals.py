"""Which refusals the log tells of: in a storm of them, their lines would cost more than they do."""

from penstock.core.errors import EngineUnavailable, Overloaded, PenstockError

# Between two lines about requests that nothing is wrong with.
_SECONDS = 1.0


class RefusalLog:
    """Has a line written for each wrong request, and one a second for those that come when none can be taken on."""

    def __init__(self) -> None:
        self._untold = 0
        self._next = 0.0

    def refused(self, error: PenstockError, now: float) -> str | None:
        """What its line ends with; None where it has none.

        To be called for each request that gets an error before there was any output; `now` in seconds on any clock.
        """
        others = ""
        if isinstance(error, Overloaded | EngineUnavailable):
            if now < self._next:
                self._untold += 1
                return None
            if self._untold:
                others = f" (and {self._untold} others since the last such line)"
            self._untold, self._next = 0, now + _SECONDS
        return others
