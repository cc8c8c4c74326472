"""Drafts in a chain: a cheaper proposer drafts for the model that drafts.

Chen et al., "Cascade speculative drafting for even faster LLM inference", NeurIPS 2024. The draft model says what it
would without that, since it chooses with random numbers that are a position's own (`verifier.py`); but where it agrees
with what was guessed, one step of it makes several tokens.
"""

from collections.abc import Sequence

from penstock.core.plan import RowPlan
from penstock.sampling.sampler import Sampler
from penstock.speculation.draft_model import DraftModel
from penstock.speculation.proposer import NONE, Proposal, Proposer, Wanted
from penstock.stepping.storage import Blocks

# Tokens that are guessed for one step of the draft model. It is small, so that rows which go for nothing cost it more
# than they do a model whose steps wait for memory.
WIDTH = 4


class Chain:
    """A draft model, and who drafts for it.

    Args:
        larger: the draft model.
        smaller: who drafts for it; learns from no hidden states.
        sampler: over their vocabulary.
        rejects: what the larger one says is accepted by rejection sampling.
    """

    def __init__(self, larger: DraftModel, smaller: Proposer, sampler: Sampler, *, rejects: bool = False) -> None:
        self.storages: tuple[Blocks, ...] = (*larger.storages, *smaller.storages)
        self._larger = larger
        self._smaller = smaller
        self._sampler = sampler
        self._rejects = rejects

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """Tell both models; see `Proposer`."""
        self._larger.begin(sequence, tokens, salt)
        self._smaller.begin(sequence, tokens, salt)

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        """Tell both models; see `Proposer`."""
        self._larger.follow(placed)
        self._smaller.follow(placed)

    def observe(self, sequence: int, gained: int) -> None:
        """Tell both models; see `Proposer`."""
        self._larger.observe(sequence, gained)
        self._smaller.observe(sequence, gained)

    def forget(self, sequence: int) -> None:
        """Tell both models; see `Proposer`."""
        self._larger.forget(sequence)
        self._smaller.forget(sequence)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """What the draft model says, in fewer steps of it where it is guessed."""
        said = {row.sequence: Proposal([], [] if self._rejects else None) for row in wanted}
        open_rows = list(wanted)
        while open_rows:
            answers = self._round(open_rows)
            for row, answer in zip(open_rows, answers, strict=True):
                said[row.sequence].tokens.extend(answer.tokens)
                if (sources := said[row.sequence].drawn_from) is not None and answer.drawn_from is not None:
                    sources.extend(answer.drawn_from)
            open_rows = [
                row._replace(depth=row.depth - len(answer.tokens), ahead=[*row.ahead, *answer.tokens])
                for row, answer in zip(open_rows, answers, strict=True)
                if 0 < len(answer.tokens) < row.depth
            ]
        return [said[row.sequence] for row in wanted]

    def _round(self, rows: Sequence[Wanted]) -> list[Proposal]:
        """The next tokens of each row: those of one step where they are guessed, otherwise all that are wanted."""
        near = [row for row in rows if row.depth > 1 and self._larger.near(row)]
        asked = [row._replace(depth=min(row.depth - 1, WIDTH)) for row in near]
        found = self._smaller.propose(asked) if asked else []
        guesses = {row.sequence: guess.tokens for row, guess in zip(asked, found, strict=True) if guess.tokens}
        guessed = [row for row in rows if row.sequence in guesses]
        others = [row for row in rows if row.sequence not in guesses]
        answers: dict[int, Proposal] = {}
        if guessed:
            judged = self._larger.judge(guessed, [guesses[row.sequence] for row in guessed], self._sampler)
            answers |= {row.sequence: answer for row, answer in zip(guessed, judged, strict=True)}
        if others:
            answers |= {row.sequence: answer for row, answer in zip(others, self._larger.propose(others), strict=True)}
        return [answers.get(row.sequence, NONE) for row in rows]
