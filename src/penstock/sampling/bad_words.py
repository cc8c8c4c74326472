"""Which tokens would complete one of the sequences that a row must not generate; goes on by one token at a time."""

from collections import deque
from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray


class BadWords:
    """Follows a row's output against sequences of tokens that must not be in it.

    A token costs a look at the sequences whose last but one it is, not at all of them.

    Attributes:
        completing: the tokens that must not come next, int64 [tokens].
    """

    __slots__ = ("_always", "_by_previous", "_tail", "completing")

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """Each sequence has at least one token."""
        self._always = sorted({sequence[0] for sequence in sequences if len(sequence) == 1})
        # The longer sequences by their last but one. All rows of a request have the same, which are not copied.
        self._by_previous: dict[int, list[Sequence[int]]] = {}
        for sequence in sequences:
            if len(sequence) > 1:
                self._by_previous.setdefault(sequence[-2], []).append(sequence)
        longest = max(map(len, sequences), default=1)
        self._tail: deque[int] = deque(maxlen=max(longest - 2, 0))
        self.completing: NDArray[np.int64] = np.asarray(self._always, np.int64)

    def fork(self) -> "BadWords":
        """The same, to go on by itself."""
        other = copy(self)
        other._tail = self._tail.copy()
        return other

    def add(self, token: int) -> None:
        """Take the next token of the output."""
        found = self._by_previous.get(token, ())
        tail = tuple(self._tail) if found else ()
        completed = {each[-1] for each in found if tail[len(tail) - len(each) + 2 :] == tuple(each[:-2])}
        self._tail.append(token)
        self.completing = np.asarray(sorted({*self._always, *completed}) if completed else self._always, np.int64)
