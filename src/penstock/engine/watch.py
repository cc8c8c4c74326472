"""When an engine counts as stuck, and when one that has ended is started again: rules without a clock of their own."""

from typing import Protocol

import msgspec


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long what is waited for, in seconds.

    Attributes:
        look_seconds: between two looks at the engine.
        unready_seconds: without progress, after which it does not count as ready.
        hang_seconds: without progress, after which it is killed. A single operation of a step never takes that time.
        settled_seconds: an engine that served for longer is started again at once.
        first_delay, longest_delay: before the second of several restarts in a row, which doubles from then on, and at
            most.
        hold_seconds: that requests wait for an engine to serve again.
    """

    look_seconds: float = 0.5
    unready_seconds: float = 3.0
    hang_seconds: float = 30.0
    settled_seconds: float = 30.0
    first_delay: float = 1.0
    longest_delay: float = 30.0
    hold_seconds: float = 120.0


class Watched(Protocol):
    """What is watched: `beats` rises while it moves."""

    beats: int


class StallWatch:
    """Counts the time for which an engine has not moved.

    It counts looks and not the time between them, so that a pause of this process, or of the whole machine, is not
    taken for one of the engine.
    """

    def __init__(self) -> None:
        self.stalled = 0.0
        self._beats = 0

    def begin(self, watched: Watched) -> None:
        """Watch another one, or the same from now on."""
        self.stalled, self._beats = 0.0, watched.beats

    def look(self, watched: Watched, seconds: float) -> None:
        """Another `seconds` have passed."""
        if watched.beats != self._beats:
            self.begin(watched)
        else:
            self.stalled += seconds


class RestartPolicy:
    """How long to wait before a restart: not at all after a time of service, twice as long after each failure."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failures = 0

    def delay(self, served_seconds: float) -> float:
        """Seconds before an engine that served for `served_seconds` is started again."""
        self._failures = 0 if served_seconds >= self._patience.settled_seconds else self._failures + 1
        if self._failures <= 1:
            return 0.0
        return min(self._patience.first_delay * 2.0 ** (self._failures - 2), self._patience.longest_delay)
