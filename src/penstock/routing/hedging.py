"""When a request whose answer has not begun is sent to a second replica, too (Dean and Barroso, The Tail at Scale,
CACM 2013: hedged requests)."""

from collections import deque

# Answers by which it is decided, at least and at most, and after how many it is decided anew.
LEAST, MOST = 100, 1000
_ANEW = 50


class Hedging:
    """The seconds in which all but a part of the last answers have begun.

    Args:
        part: of requests, those that begin last; 0: none is sent twice.
    """

    def __init__(self, part: float) -> None:
        self._part = part
        self._last: deque[float] = deque(maxlen=MOST)
        self._count = 0
        self._seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """After which a request is sent once more; None while too little is known, or where none is."""
        return self._seconds

    def began(self, seconds: float) -> None:
        """An answer has begun so long after its request was sent."""
        if not self._part:
            return
        self._last.append(seconds)
        self._count += 1
        if len(self._last) >= LEAST and self._count % _ANEW == 0:
            ordered = sorted(self._last)
            self._seconds = ordered[min(len(ordered) - 1, int((1 - self._part) * len(ordered)))]
