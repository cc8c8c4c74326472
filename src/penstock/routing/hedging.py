"""When a request whose answer has not begun is sent to a second replica, too (Dean and Barroso, The Tail at Scale,
CACM 2013: hedged requests)."""

from collections import deque

# Answers by which it is decided, at least and at most, and after how many it is decided anew.
LEAST, MOST = 100, 1000
_ANEW = 50
# Requests that may be sent twice one after the other, however few were before.
_MOST_SAVED = 10.0


class Hedging:
    """The seconds in which all but a part of the last answers have begun, and how many may be sent twice.

    Args:
        part: of requests, those that begin last, and the most that are sent twice; 0: none is.
    """

    def __init__(self, part: float) -> None:
        self._part = part
        self._last: deque[float] = deque(maxlen=MOST)
        self._count = 0
        self._seconds: float | None = None
        self._saved = 0.0

    @property
    def seconds(self) -> float | None:
        """After which a request is sent once more; None while too little is known, or where none is."""
        return self._seconds

    def sent(self) -> None:
        """A request is sent for the first time."""
        self._saved = min(_MOST_SAVED, self._saved + self._part)

    def take(self) -> bool:
        """Whether one may be sent twice; if so, it is counted."""
        # Parts are added up, so that ten tenths are a little less than 1.
        if self._saved < 1.0 - 1e-9:
            return False
        self._saved -= 1.0
        return True

    def began(self, seconds: float) -> None:
        """An answer has begun so long after its request was sent, or had not until then."""
        if not self._part:
            return
        self._last.append(seconds)
        self._count += 1
        if len(self._last) >= LEAST and self._count % _ANEW == 0:
            ordered = sorted(self._last)
            self._seconds = ordered[min(len(ordered) - 1, int((1 - self._part) * len(ordered)))]
