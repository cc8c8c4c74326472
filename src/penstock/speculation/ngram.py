"""Drafts from the sequence itself: what followed the last time that its newest tokens stood together.

Where more of them stood together in what another request of the same tenant has said, what followed there.

Prompt lookup decoding (Saxena, 2023) and the n-gram matching of "LLMA" (Yang et al., "Inference with reference:
lossless acceleration of large language models", 2023): answers quote, edit and repeat.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice

from penstock.core.plan import RowPlan
from penstock.speculation.finished import FinishedText
from penstock.speculation.proposer import NONE, Proposal, Wanted
from penstock.speculation.tree import chain
from penstock.stepping.storage import Blocks

# Newest tokens that have to have stood together before; of several lengths, the longest that has is taken.
LONGEST = 4
SHORTEST = 2
# Tokens that are taken in in a step, and looked through of what finished requests have said: each time two or three
# milliseconds, since long prompts must not hold up every sequence's next token.
CATCH_UP = 1 << 16
FINISHED_CATCH_UP = 4096
# Earlier places of a run that are looked at for something else that has followed.
MOST_PLACES = 16

_CHARACTERS = sys.maxunicode + 1


def _characters(tokens: Sequence[int]) -> str:
    # In a vocabulary of more tokens than there are characters, some share one, and drafts are wrong now and then.
    return "".join([chr(token % _CHARACTERS) for token in tokens])


class _History:
    """One sequence's tokens, as a text with a character for each: so they are searched a hundred times as fast."""

    __slots__ = ("_prompt", "_text", "_tokens", "salt")

    def __init__(self, tokens: list[int], salt: str) -> None:
        self.salt = salt
        self._tokens = tokens
        self._prompt = len(tokens)
        # Only where drafts are wanted, so that they cost nothing in a large batch.
        self._text = ""

    @property
    def output(self) -> list[int]:
        """What was said, and the end of what it was said to."""
        return self._tokens[max(0, self._prompt - LONGEST) :]

    def catch_up(self, most: int) -> int:
        """Take in up to `most` of the tokens that have come; returns how many."""
        known = len(self._text)
        come = self._tokens[known : known + most]
        if come:
            self._text += _characters(come)
        return len(come)

    @property
    def is_known(self) -> bool:
        """Whether all of its tokens were taken in."""
        return len(self._text) == len(self._tokens)

    def following(self, count: int, ahead: Sequence[int]) -> tuple[list[int], int]:
        """Up to `count` tokens behind the newest earlier place of what stands at the end with `ahead` behind it.

        And how many tokens stood together there.
        """
        for run in self._runs(ahead):
            for place in self._places(run):
                return self._from(place, count, ahead), len(run)
        return [], 0

    def otherwise(self, drafts: Sequence[int], count: int, ahead: Sequence[int]) -> tuple[int, list[int]]:
        """Up to `count` tokens that may come instead of some of the drafts, and how many of these before.

        They are what followed another time, at the first place where there is one.
        """
        known = self._tokens
        for before, draft in enumerate(drafts):
            for run in self._runs([*ahead, *drafts[:before]]):
                for place in islice(self._places(run), MOST_PLACES):
                    if known[place] != draft:
                        return before, known[place : place + min(count, len(drafts) - before)]
        return 0, []

    def _runs(self, ahead: Sequence[int]) -> Iterator[str]:
        """The newest tokens with `ahead` behind them, the most first."""
        newest = self._text[-LONGEST:] + _characters(ahead[-LONGEST:])
        for length in range(min(LONGEST, len(newest)), SHORTEST - 1, -1):
            yield newest[-length:]

    def _places(self, run: str) -> Iterator[int]:
        """Where the run stood and something followed: behind its ends, the newest first."""
        end = len(self._text) - 1
        while (start := self._text.rfind(run, 0, end)) >= 0:
            yield start + len(run)
            end = start + len(run) - 1

    def newest(self, ahead: Sequence[int]) -> list[int]:
        """The newest tokens, up to `LONGEST`, with those `ahead`: a place is looked for where they stood before."""
        return [*self._tokens[-LONGEST:], *ahead[-LONGEST:]][-LONGEST:]

    def _from(self, place: int, count: int, ahead: Sequence[int]) -> list[int]:
        """What stands from `place` on; from the end it goes round, as a text that repeats itself does."""
        known = self._tokens
        if place + count <= len(known):
            return known[place : place + count]
        period, there = len(known) - place + len(ahead), len(known) - place
        steps = (step % period for step in range(count))
        return [known[place + step] if step < there else ahead[step - there] for step in steps]


class NgramProposer:
    """Looks through the tokens of each sequence that drafts are wanted for.

    Args:
        remembers: tokens of finished outputs that are kept, too, to draft from.
    """

    def __init__(self, remembers: int = 0) -> None:
        self.storages: tuple[Blocks, ...] = ()
        self._histories: dict[int, _History] = {}
        self._finished = FinishedText(remembers, LONGEST) if remembers else None

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """Its tokens are read where drafts are wanted."""
        self._histories[sequence] = _History(tokens, salt)

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        """Does nothing: nothing is computed of texts."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """What followed when each row's newest tokens stood together before."""
        left, finished_left = CATCH_UP, FINISHED_CATCH_UP
        proposals = []
        for row in wanted:
            history = self._histories[row.sequence]
            left -= history.catch_up(left)
            if self._finished is not None:
                finished_left -= self._finished.catch_up(history.salt, finished_left)
            proposals.append(self._proposal(history, row) if history.is_known else NONE)
        return proposals

    def _proposal(self, history: _History, row: Wanted) -> Proposal:
        drafts, agreed = history.following(row.depth, row.ahead)
        if self._finished is not None and agreed < LONGEST:
            drafts = self._finished.following(history.salt, history.newest(row.ahead), row.depth) or drafts
        if not row.width:
            return Proposal(drafts)
        before, others = history.otherwise(drafts, row.width, row.ahead)
        if not others:
            return Proposal(drafts)
        behind = range(len(drafts), len(drafts) + len(others) - 1)
        return Proposal([*drafts, *others], None, [*chain(len(drafts)), before - 1, *behind])

    def observe(self, sequence: int, gained: int) -> None:
        """What was gained is read where drafts are wanted."""

    def forget(self, sequence: int) -> None:
        """Forget the sequence, but for what it has said."""
        history = self._histories.pop(sequence, None)
        if history is not None and self._finished is not None:
            self._finished.add(history.salt, history.output)
