"""Drafts from the sequence's own text or from a model, whichever has lately been right more often.

What the text says costs next to nothing, so it is asked every time, and compared with what comes even where the model
drafts: where an answer begins to quote, the text takes over, and where it goes on freely the model does.
"""

from collections.abc import Sequence

from penstock.core.acceptance import Acceptance
from penstock.core.plan import RowPlan
from penstock.speculation.ngram import NgramProposer
from penstock.speculation.proposer import NONE, Proposal, Proposer, Wanted, agreeing
from penstock.speculation.tree import chain_length
from penstock.stepping.storage import Blocks

# How often drafts are taken to be right before any were judged.
HOPE = 0.6


class _Source:
    """One of the proposers: how often it has been right, for all sequences and lately for each."""

    def __init__(self) -> None:
        self._common = Acceptance()
        self._own: dict[int, Acceptance] = {}
        self._said: dict[int, list[int]] = {}

    def said(self, sequence: int, proposal: Proposal) -> None:
        """It proposes this; its likeliest branch is judged."""
        count = len(proposal.tokens) if proposal.parents is None else chain_length(proposal.parents)
        self._said[sequence] = proposal.tokens[:count]

    def observe(self, sequence: int, tokens: Sequence[int]) -> None:
        """These have come."""
        said = self._said.pop(sequence, None)
        if not said:
            return
        right = agreeing(said, tokens)
        # What would have come behind the last token is unknown.
        judged = min(right + 1, len(said), len(tokens))
        for acceptance in (self._common, self._own.setdefault(sequence, Acceptance())):
            acceptance.add(right, judged)

    def rate(self, sequence: int) -> float:
        """How often it is right."""
        common = self._common.rate(HOPE)
        own = self._own.get(sequence)
        return common if own is None else own.rate(common)

    def forget(self, sequence: int) -> None:
        """Forget the sequence."""
        self._own.pop(sequence, None)
        self._said.pop(sequence, None)


class Either:
    """Asks the text, and, where it says nothing or has been wrong more often, the model."""

    def __init__(self, text: NgramProposer, model: Proposer) -> None:
        self.storages: tuple[Blocks, ...] = model.storages
        self._text = text
        self._model = model
        self._of_text, self._of_model = _Source(), _Source()
        self._tokens: dict[int, list[int]] = {}

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """Tell both proposers of a new sequence."""
        self._tokens[sequence] = tokens
        self._text.begin(sequence, tokens, salt)
        self._model.begin(sequence, tokens, salt)

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        """The model is told; the text computes nothing."""
        self._model.follow(placed)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """What either says of each row."""
        text, model = self._of_text, self._of_model
        guesses = self._text.propose(wanted)
        asked = []
        for row, guess in zip(wanted, guesses, strict=True):
            text.said(row.sequence, guess)
            if row.text_only:
                continue
            if not guess.tokens or text.rate(row.sequence) < model.rate(row.sequence):
                asked.append(row)
        drafts = {}
        for row, draft in zip(asked, self._model.propose(asked) if asked else [], strict=True):
            model.said(row.sequence, draft)
            drafts[row.sequence] = draft
        # Where the model is not ready yet, what the text says is better than nothing.
        return [
            draft if (draft := drafts.get(row.sequence, NONE)).tokens else guess
            for row, guess in zip(wanted, guesses, strict=True)
        ]

    def observe(self, sequence: int, gained: int) -> None:
        """What both have said is judged; the text, which reads what is there, need not be told."""
        come = self._tokens[sequence][-gained:]
        self._of_text.observe(sequence, come)
        self._of_model.observe(sequence, come)
        self._model.observe(sequence, gained)

    def forget(self, sequence: int) -> None:
        """Drop what is kept of a sequence, here and in both proposers."""
        self._tokens.pop(sequence, None)
        self._of_text.forget(sequence)
        self._of_model.forget(sequence)
        self._text.forget(sequence)
        self._model.forget(sequence)
