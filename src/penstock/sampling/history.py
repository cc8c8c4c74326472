"""Which tokens a row has seen and how often, for penalties; grows by one token at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenHistory:
    """Distinct tokens of prompt and output, each with the number of its occurrences in the output.

    `prompt` may be empty where only the output counts. Arrays grow by doubling, so that a token costs constant time.
    """

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        seen = np.unique(np.asarray(prompt, dtype=np.int64))
        self._size = seen.size
        self._ids = np.empty(max(16, 2 * seen.size), np.int64)
        self._ids[: seen.size] = seen
        self._counts = np.zeros(self._ids.size, np.float32)
        self._slots: dict[int, int] = {token: slot for slot, token in enumerate(seen.tolist())}

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens seen, int64 [seen]; a view that is valid until the next `add`."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Occurrences in the output, float32 [seen], in the order of `ids`; 0 for tokens of the prompt only."""
        return self._counts[: self._size]

    def fork(self) -> "TokenHistory":
        """The same, to go on by itself."""
        other = TokenHistory()
        other._size, other._ids, other._counts = self._size, self._ids.copy(), self._counts.copy()
        other._slots = self._slots.copy()
        return other

    def add(self, token: int) -> None:
        """Count one more output token."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._size
            if slot == self._ids.size:
                self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._slots[token] = slot
            self._ids[slot] = token
            self._size += 1
        self._counts[slot] += 1.0
