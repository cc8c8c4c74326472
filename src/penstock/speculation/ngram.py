"""Drafts from the sequence itself: what followed the last time that its newest tokens stood together.

Where more of them stood together in what another request of the same tenant has said, what followed there.

Prompt lookup decoding (Saxena, 2023) and the n-gram matching of "LLMA" (Yang et al., "Inference with reference:
lossless acceleration of large language models", 2023): answers quote, edit and repeat.
"""

from collections.abc import Iterator, Sequence

from penstock.core.plan import RowPlan
from penstock.speculation.finished import FinishedText
from penstock.speculation.proposer import NONE, Blocks, Proposal, Wanted
from penstock.speculation.tree import chain

# Newest tokens that have to have stood together before; of several lengths, the longest that has is taken.
LONGEST = 4
SHORTEST = 2
# Tokens that are looked through in a step: long prompts must not hold up everybody's next token.
CATCH_UP = 4096
# Other tokens that such a run has gone on with which are remembered.
MOST_OTHERS = 2


class _History:
    """One sequence's tokens, and where each run of them ended last."""

    __slots__ = ("_ends", "_indexed", "_others", "_prompt", "_tokens", "salt")

    def __init__(self, prompt: Sequence[int], salt: str) -> None:
        self.salt = salt
        self._tokens = list(prompt)
        self._prompt = len(prompt)
        # Only where drafts are wanted is it known what stands where, so that they cost nothing in a large batch.
        self._indexed = 0
        self._ends: dict[tuple[int, ...], int] = {}
        # Where it ended before and went on with another token, newest last.
        self._others: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    @property
    def missing(self) -> int:
        return len(self._tokens) - self._indexed

    @property
    def output(self) -> list[int]:
        """What was said, and the end of what it was said to."""
        return self._tokens[max(0, self._prompt - LONGEST) :]

    def catch_up(self, most: int) -> int:
        """Index up to so many tokens that are not yet; how many."""
        known, ends = self._tokens, self._ends
        end = min(len(known), self._indexed + most)
        for place in range(self._indexed, end):
            token = known[place]
            # A run is known only once something has followed it, so that it is never found where it stands itself.
            for length in range(SHORTEST, min(LONGEST, place) + 1):
                run = tuple(known[place - length : place])
                before = ends.get(run)
                if before is not None and known[before] != token:
                    self._keep(run, before, token)
                ends[run] = place
        looked, self._indexed = end - self._indexed, end
        return looked

    def _keep(self, run: tuple[int, ...], place: int, token: int) -> None:
        """A run that went on otherwise at `place` goes on with `token` now."""
        known, following = self._tokens, (token, self._tokens[place])
        others = [other for other in self._others.get(run, ()) if known[other] not in following]
        self._others[run] = [*others, place][-MOST_OTHERS:]

    def following(self, count: int, ahead: Sequence[int]) -> tuple[list[int], int]:
        """Up to `count` tokens behind the newest earlier place of what stands at the end with `ahead` behind it.

        And how many tokens stood together there.
        """
        for run in self._runs(ahead):
            place = self._ends.get(run)
            if place is not None:
                return self._from(place, count, ahead), len(run)
        return [], 0

    def otherwise(self, drafts: Sequence[int], count: int, ahead: Sequence[int]) -> tuple[int, list[int]]:
        """Up to `count` tokens that may come instead of some of the drafts, and how many of these before.

        They are what followed another time, at the first place where there is one.
        """
        known = self._tokens
        for before, draft in enumerate(drafts):
            for run in self._runs([*ahead, *drafts[:before]]):
                if run not in self._ends:
                    continue
                for place in (self._ends[run], *reversed(self._others.get(run, ()))):
                    if known[place] != draft:
                        return before, known[place : place + min(count, len(drafts) - before)]
        return 0, []

    def _runs(self, ahead: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The newest tokens with `ahead` behind them, the most first."""
        newest = self.newest(ahead)
        for length in range(len(newest), SHORTEST - 1, -1):
            yield tuple(newest[-length:])

    def newest(self, ahead: Sequence[int]) -> list[int]:
        """As many of them as may have to have stood together."""
        return [*self._tokens[-LONGEST:], *ahead[-LONGEST:]][-LONGEST:]

    def _from(self, place: int, count: int, ahead: Sequence[int]) -> list[int]:
        """What stands from `place` on; from the end it goes round, as a text that repeats itself does."""
        known = self._tokens
        period, there = len(known) - place + len(ahead), len(known) - place
        steps = (step % period for step in range(count))
        return [known[place + step] if step < there else ahead[step - there] for step in steps]


class NgramProposer:
    """Keeps the tokens of every sequence, and an index of those that drafts are wanted for.

    Args:
        remembers: tokens of finished outputs that are kept, too, to draft from.
    """

    def __init__(self, remembers: int = 0) -> None:
        self.storages: tuple[Blocks, ...] = ()
        self._histories: dict[int, _History] = {}
        self._finished = FinishedText(remembers, LONGEST) if remembers else None

    def begin(self, sequence: int, prompt: Sequence[int], salt: str = "") -> None:
        """Keep the prompt."""
        self._histories[sequence] = _History(prompt, salt)

    def follow(self, rows: Sequence[RowPlan], table_rows: Sequence[int]) -> None:
        """Nothing is computed."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """What followed when each row's newest tokens stood together before."""
        left = CATCH_UP
        proposals = []
        for row in wanted:
            history = self._histories[row.sequence]
            left -= history.catch_up(left)
            if self._finished is not None:
                left -= self._finished.catch_up(history.salt, left)
            proposals.append(NONE if history.missing else self._proposal(history, row))
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

    def observe(self, sequence: int, tokens: Sequence[int]) -> None:
        """Keep what the sequence has gained."""
        self._histories[sequence].extend(tokens)

    def forget(self, sequence: int) -> None:
        """Forget the sequence, but for what it has said."""
        history = self._histories.pop(sequence, None)
        if history is not None and self._finished is not None:
            self._finished.add(history.salt, history.output)
