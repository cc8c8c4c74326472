"""Whether a store works: one that has failed is left in peace for a while, and that is told once."""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("penstock.kv_tiers")

# Before a store that has failed is asked again: at first, and at most, where it fails each time.
_REST_SECONDS, _LONGEST_REST = 10.0, 300.0


class Health:
    """Of one kind of calls to a store. May be used on several threads.

    Args:
        where: what users call the store.
        cannot: what it cannot do, and `so`, what follows while it is so.
        expected: exceptions of a store that does not work; any other is told with where it came from.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        where: str,
        cannot: str,
        so: str,
        expected: tuple[type[Exception], ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._where, self._cannot, self._so = where, cannot, so
        self._expected = expected
        self._lock = threading.Lock()
        self._rest, self._until = 0.0, 0.0
        self._failing = False

    @property
    def rests(self) -> bool:
        """Whether it is to be left in peace."""
        return self._failing and self._clock() < self._until

    @property
    def seconds_left(self) -> float:
        """For how many seconds it is to be left in peace; 0: it may be asked."""
        return max(0.0, self._until - self._clock()) if self._failing else 0.0

    def failed(self, error: Exception) -> None:
        """A call has failed. Of several at a time, one counts."""
        with self._lock:
            if self.rests:
                return
            self._rest = min(2 * self._rest or _REST_SECONDS, _LONGEST_REST)
            self._until = self._clock() + self._rest
            told, self._failing = self._failing, True
        if not told:
            trace = None if isinstance(error, self._expected) else error
            why = (str(error) or type(error).__name__).splitlines()[0]
            logger.warning("%s cannot be %s (%s): %s.", self._where, self._cannot, why, self._so, exc_info=trace)

    def worked(self) -> None:
        """A call was answered, so that the store works."""
        if not self._failing:
            return
        with self._lock:
            told, self._failing, self._rest = self._failing, False, 0.0
        if told:
            logger.warning("%s can be %s again.", self._where, self._cannot)
