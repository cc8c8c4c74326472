"""Stop strings against a stream of bytes."""

from collections.abc import Sequence
from copy import copy

from penstock.core.errors import InvalidParameter


class StopMatcher:
    """Finds the first stop string in an output, fed one token's bytes at a time.

    The match that ends first counts, the longest where several end together; so the result does not depend on how
    the text is cut into tokens. Matching is that of Knuth, Morris and Pratt (1977): linear in the bytes fed, for
    each stop string, whatever the strings are.

    Attributes:
        held: how many of the last bytes fed may be the beginning of a stop string.
        matched: the stop string that was found.
        overrun: bytes of the last token after the end of the match.
    """

    __slots__ = (
        "_failures",
        "_first_bytes",
        "_min_tokens",
        "_states",
        "_stops",
        "_texts",
        "_tokens",
        "held",
        "matched",
        "overrun",
    )

    def __init__(self, stops: Sequence[str], min_tokens: int = 0) -> None:
        """`min_tokens`: stop strings that end in an earlier token than this (counted from 1) do not count."""
        if any(not stop for stop in stops):
            raise InvalidParameter("stop", "an empty string would end every output; leave it out.")
        # Longest first, so that the first one found at a byte is the longest.
        self._texts = sorted(dict.fromkeys(stops), key=lambda stop: -len(stop.encode("utf-8")))
        self._stops = [stop.encode("utf-8") for stop in self._texts]
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._first_bytes = frozenset(stop[0] for stop in self._stops)
        self._min_tokens = min_tokens
        self._tokens = 0
        self.held = 0
        self.matched: str | None = None
        self.overrun = 0

    def fork(self) -> "StopMatcher":
        """The same, to go on by itself."""
        other = copy(self)
        other._states = self._states.copy()
        return other

    def feed(self, piece: bytes) -> str | None:
        """Take the bytes of one more token (none, if it has no text); returns the stop string that ends in it."""
        self._tokens += 1
        if not self._stops or (not self.held and self._first_bytes.isdisjoint(piece)):
            return None
        counts = self._tokens >= self._min_tokens
        for offset, byte in enumerate(piece):
            found = self._advance(byte)
            if found is not None and counts:
                self.matched = self._texts[found]
                self.overrun = len(piece) - offset - 1
                return self.matched
        # A complete stop string that did not count may still begin a longer one, by its own end only.
        self.held = max(
            failure[state] if state == len(stop) else state
            for state, stop, failure in zip(self._states, self._stops, self._failures, strict=True)
        )
        return None

    def _advance(self, byte: int) -> int | None:
        """Move every stop string's state over one byte; returns the index of the first that is complete."""
        found = None
        for index, stop in enumerate(self._stops):
            failure = self._failures[index]
            state = self._states[index]
            while state and (state == len(stop) or stop[state] != byte):
                state = failure[state]
            if stop[state] == byte:
                state += 1
            self._states[index] = state
            if state == len(stop) and found is None:
                found = index
        return found


def _failure_table(pattern: bytes) -> list[int]:
    """For every prefix length of `pattern`, the length of its longest proper suffix that is a prefix too."""
    table = [0] * (len(pattern) + 1)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[position] != pattern[length]:
            length = table[length]
        if pattern[position] == pattern[length]:
            length += 1
        table[position + 1] = length
    return table
