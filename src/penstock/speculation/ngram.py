"""Drafts from the sequence itself: what followed the last time that its newest tokens stood together.

Prompt lookup decoding (Saxena, 2023) and the n-gram matching of "LLMA" (Yang et al., "Inference with reference:
lossless acceleration of large language models", 2023): answers quote, edit and repeat.
"""

from collections.abc import Sequence

from penstock.core.plan import RowPlan
from penstock.speculation.proposer import Blocks, Proposal, Wanted

# Newest tokens that have to have stood together before; of several lengths, the longest that has is taken.
LONGEST = 4
SHORTEST = 2


class _History:
    """One sequence's tokens, and where each run of them ended last."""

    __slots__ = ("_ends", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        known, ends = self._tokens, self._ends
        for token in tokens:
            # A run is known only once something has followed it, so that it is never found where it stands itself.
            place = len(known)
            for length in range(SHORTEST, min(LONGEST, place) + 1):
                ends[tuple(known[place - length :])] = place
            known.append(token)

    def following(self, count: int, ahead: Sequence[int]) -> list[int]:
        """Up to `count` tokens behind the newest earlier place of what stands at the end with `ahead` behind it."""
        newest = [*self._tokens[-LONGEST:], *ahead][-LONGEST:]
        for length in range(len(newest), SHORTEST - 1, -1):
            place = self._ends.get(tuple(newest[-length:]))
            if place is not None:
                return self._from(place, count, ahead)
        return []

    def _from(self, place: int, count: int, ahead: Sequence[int]) -> list[int]:
        """What stands from `place` on; from the end it goes round, as a text that repeats itself does."""
        known = self._tokens
        period, there = len(known) - place + len(ahead), len(known) - place
        steps = (step % period for step in range(count))
        return [known[place + step] if step < there else ahead[step - there] for step in steps]


class NgramProposer:
    """Keeps an index of every sequence's own tokens: about a microsecond for each of them."""

    def __init__(self) -> None:
        self.storages: tuple[Blocks, ...] = ()
        self._histories: dict[int, _History] = {}

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """Index the prompt."""
        history = self._histories[sequence] = _History()
        history.extend(prompt)

    def follow(self, rows: Sequence[RowPlan], table_rows: Sequence[int]) -> None:
        """Nothing is computed."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """What followed when each row's newest tokens stood together before."""
        return [Proposal(self._histories[row.sequence].following(row.depth, row.ahead)) for row in wanted]

    def observe(self, sequence: int, tokens: Sequence[int]) -> None:
        """Index what the sequence has gained."""
        self._histories[sequence].extend(tokens)

    def forget(self, sequence: int) -> None:
        """Forget the sequence."""
        self._histories.pop(sequence, None)
