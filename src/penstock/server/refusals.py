"""What the log says of requests that are not taken on: in a storm of them, their lines would cost more than they do."""

import logging

from penstock.core.errors import EngineUnavailable, Overloaded, PenstockError
from penstock.observability.metrics import Endpoint, Outcome

logger = logging.getLogger("penstock.server")

# Between two lines about requests that nothing is wrong with.
_SECONDS = 1.0


class RefusalLog:
    """Writes a line for each wrong request, and one a second for those that come when the server can take on none."""

    def __init__(self) -> None:
        self._untold = 0
        self._next = 0.0

    def refused(self, endpoint: Endpoint, outcome: Outcome, error: PenstockError, now: float) -> None:
        """A request has got an error before there was any output; `now` in seconds on any clock."""
        others = ""
        if isinstance(error, Overloaded | EngineUnavailable):
            if now < self._next:
                self._untold += 1
                return
            if self._untold:
                others = f" (and {self._untold} others since the last such line)"
            self._untold, self._next = 0, now + _SECONDS
        logger.info("%s request %s: %d %s%s", endpoint, outcome, error.http_status, error.message, others)
