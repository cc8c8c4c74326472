"""Decoding several tokens of each sequence at once, before any of them is verified."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from penstock.core.speculation import RANKS
from penstock.kernels.batch import StepBatch
from penstock.sampling.choice import Choice
from penstock.sampling.distribution import Distribution
from penstock.sampling.sampler import Sampler
from penstock.speculation.candidates import Ranked, likely_tree
from penstock.speculation.proposer import Proposal
from penstock.stepping.gather import following_batch


class StepwiseModel(Protocol):
    """A model that is run step by step."""

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """Logits of the selected tokens, and what is given to the next step of each."""


class Decode(Protocol):
    """Decodes several tokens of each row of a batch."""

    def __call__(
        self, batch: StepBatch, tokens: Sequence[int], widths: Sequence[int], choices: Sequence[Choice], *given: Tensor
    ) -> list[Proposal]:
        """For each row `tokens` tokens, the first chosen as its choice says, and `widths` others beside them.

        Every row of the batch has one row of logits, and its block table has room for all of its tokens but the last.
        No choice has a mask. Behind the first, a row's tokens are chosen at one output position further each. A token
        is 0 where the logits are not finite at their largest. `given` is what the model reads beside the first tokens.
        """


class DecodeTokens(Protocol):
    """The same for tokens alone, as a compiled program may do it in one call."""

    def __call__(
        self, batch: StepBatch, tokens: Sequence[int], ranks: Sequence[int], choices: Sequence[Choice], *given: Tensor
    ) -> list[tuple[list[int], list[float]]]:
        """See `kernels.dispatch.Decodes`."""


def in_one_call(decode: DecodeTokens) -> Decode:
    """Decodes by what knows no distributions."""

    def proposed(
        batch: StepBatch, tokens: Sequence[int], widths: Sequence[int], choices: Sequence[Choice], *given: Tensor
    ) -> list[Proposal]:
        proposals = []
        ranks = [RANKS if width else 1 for width in widths]
        for (ids, likely), width in zip(decode(batch, tokens, ranks, choices, *given), widths, strict=True):
            if not width:
                proposals.append(Proposal(ids))
                continue
            named = list(zip(ids, likely, strict=True))
            places = [named[first : first + RANKS] for first in range(0, len(named), RANKS)]
            there = [[each for each in place if each[0] >= 0] for place in places]
            proposals.append(likely_tree(there, width, continued=False))
        return proposals

    return proposed


class StepwiseDecoder:
    """Decodes step by step: what a call for all steps is held to, and what works without native code.

    Args:
        model, sampler: over one vocabulary.
        tells: whether it says what each token was drawn from.
    """

    def __init__(self, model: StepwiseModel, sampler: Sampler, *, tells: bool = False) -> None:
        self._model = model
        self._sampler = sampler
        self._tells = tells

    def decode(
        self, batch: StepBatch, tokens: Sequence[int], widths: Sequence[int], choices: Sequence[Choice], *given: Tensor
    ) -> list[Proposal]:
        """See `Decode`."""
        found: list[list[int]] = [[] for _ in tokens]
        places: list[list[Ranked]] = [[] for _ in tokens]
        sources: list[list[Distribution]] = [[] for _ in tokens]
        rows = list(range(len(tokens)))
        while rows:
            asked = [
                choices[row]._replace(row=place, position=choices[row].position + len(found[row]))
                for place, row in enumerate(rows)
            ]
            logits, *made = self._model.results(batch, *given)
            for row, token in zip(rows, self._sampler.guess(logits, asked), strict=True):
                found[row].append(token)
            wide = [(row, choice) for row, choice in zip(rows, asked, strict=True) if widths[row]]
            if wide:
                ranked = self._sampler.ranked(logits, [choice for _, choice in wide], RANKS)
                for (row, _), named in zip(wide, ranked, strict=True):
                    places[row].append(named or [(0, 0.0)])
            if self._tells:
                for row, drawn_from in zip(rows, self._sampler.distributions(logits, asked), strict=True):
                    sources[row].append(drawn_from)
            stay = [place for place, row in enumerate(rows) if len(found[row]) < tokens[row]]
            if stay:
                batch = following_batch(batch, stay, [found[rows[place]][-1] for place in stay])
                given = tuple(each[stay] for each in made)
            rows = [rows[place] for place in stay]
        if not self._tells:
            return [
                likely_tree(ranked, width, continued=False) if width else Proposal(each)
                for each, ranked, width in zip(found, places, widths, strict=True)
            ]
        return [Proposal(each, drawn_from) for each, drawn_from in zip(found, sources, strict=True)]
