"""What finished requests have said, for drafts of those that come: agents and forms say much of it again."""

from collections.abc import Sequence

# Stands between two outputs, and is no token.
_END = -1


class _Text:
    """Outputs one behind the other, and where each run of `length` tokens stood last."""

    __slots__ = ("_ends", "_indexed", "_length", "tokens")

    def __init__(self, length: int, tokens: list[int]) -> None:
        self.tokens = tokens
        self._length = length
        self._indexed = 0
        self._ends: dict[tuple[int, ...], int] = {}

    def catch_up(self, most: int) -> int:
        """Index up to `most` tokens that are not yet indexed; returns how many."""
        end = min(len(self.tokens), self._indexed + most)
        for place in range(max(self._length, self._indexed), end):
            self._ends[tuple(self.tokens[place - self._length : place])] = place
        looked, self._indexed = end - self._indexed, end
        return looked

    def following(self, run: tuple[int, ...], count: int) -> list[int]:
        place = self._ends.get(run)
        if place is None:
            return []
        found = self.tokens[place : place + count]
        return found[: found.index(_END)] if _END in found else found


class FinishedText:
    """The newest outputs, apart for each cache salt: what was drafted shows in how fast an answer comes.

    Args:
        most: tokens that are kept, of all salts together; those of the salt that was used longest ago go first.
        run: newest tokens of a sequence that have to have stood together in an output.

    Attributes:
        size: tokens that are kept, ends of outputs among them.
    """

    def __init__(self, most: int, run: int) -> None:
        self._most = most
        self._run = run
        # In the order of their use.
        self._texts: dict[str, _Text] = {}
        self.size = 0

    def add(self, salt: str, output: Sequence[int]) -> None:
        """A sequence has ended with these tokens."""
        text = self._texts.pop(salt, None) or _Text(self._run, [])
        text.tokens += [*output, _END]
        self._texts[salt] = text
        self.size += len(output) + 1
        while self.size > self._most and len(self._texts) > 1:
            self.size -= len(self._texts.pop(next(iter(self._texts))).tokens)
        if self.size > self._most:
            # Half of them, so that the index is not made anew for each output.
            self._texts[salt] = text = _Text(self._run, text.tokens[-max(1, self._most // 2) :])
            self.size = len(text.tokens)

    def catch_up(self, salt: str, most: int) -> int:
        """Index up to `most` tokens of the namespace `salt` that are not yet indexed; returns how many."""
        text = self._texts.get(salt)
        return 0 if text is None else text.catch_up(most)

    def following(self, salt: str, newest: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens behind the newest place of the last tokens of `newest`, in one output."""
        text = self._texts.pop(salt, None)
        if text is None:
            return []
        self._texts[salt] = text
        return text.following(tuple(newest[-self._run :]), count)
