"""Beam search as pure rules: which hypotheses go on, which have ended, and when the search is over.

The semantics are those of `generate` in transformers 5, for one prompt: of all continuations of all beams the likeliest
are looked at; those that end count where they are among the first `width`, and the first `width` of the others are the
next beams. A batch has no part in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import NamedTuple

from penstock.core.beam_search import NEVER, BeamScore, BeamSearch
from penstock.core.plan import Ending, TokenLogprobs

Likely = tuple[int, float]
"""A token that may come next, and its log probability."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A beginning of an output, as its last token and the hypothesis before that.

    Attributes:
        origin: what it continues; None where it is the first token.
        token: the last.
        logprob: that of the token.
        total: the sum of all log probabilities.
        length: how many tokens it has.
        ending: how the token ends the output; None where it does not.
        logprobs: of the token, where asked for.
    """

    origin: "Hypothesis | None"
    token: int
    logprob: float
    total: float
    length: int
    ending: Ending | None = None
    logprobs: TokenLogprobs | None = None

    def path(self) -> list["Hypothesis"]:
        """The hypotheses of all its tokens, from the first on."""
        found: list[Hypothesis] = []
        here: Hypothesis | None = self
        while here is not None:
            found.append(here)
            here = here.origin
        return found[::-1]


class Candidate(NamedTuple):
    """A continuation of a beam.

    Attributes:
        beam: the place of the beam among those that go on.
        token, logprob: what comes next.
        total: the sum of all log probabilities with that.
        ending: how it ends the output; None where it does not.
        logprobs: of the token, where asked for.
    """

    beam: int
    token: int
    logprob: float
    total: float
    ending: Ending | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """Where the search of one request is.

    Attributes:
        asked: what is searched for, at most `max_tokens` tokens.
        beams: hypotheses that go on, the likeliest first; None before the first token, which is one empty beam.
        beams_from: for each, the place of what it continues among the beams before.
        finished: hypotheses that have ended, the best first, at most `asked.width`.
        length: tokens of each beam.
        over: whether nothing better can be found, as `asked` has it.
        begun: tokens that count for the lengths of outputs and are none of theirs: those that the decoder of an
            encoder–decoder is forced to begin with.
    """

    asked: BeamSearch
    max_tokens: int
    beams: tuple[Hypothesis, ...] | None = None
    beams_from: tuple[int, ...] = ()
    finished: tuple[Hypothesis, ...] = ()
    length: int = 0
    over: bool = False
    begun: int = 0

    def score(self, hypothesis: Hypothesis) -> BeamScore:
        """How likely a hypothesis is, with the length penalty."""
        return BeamScore(hypothesis.total, self._penalized(hypothesis.total, hypothesis.length))

    def _penalized(self, total: float, length: int) -> float:
        return float(total / (self.begun + length) ** self.asked.length_penalty)

    def candidates(self, likely: Sequence[Iterable[Likely]], count: int) -> list[Candidate]:
        """The `count` likeliest continuations, the best first, where each beam's likeliest tokens are known.

        At most `count` of a beam are needed. Equal sums go to the likelier beam, then to the lower token.
        """
        totals = (0.0,) if self.beams is None else [beam.total for beam in self.beams]
        found = (
            (-(total + logprob), beam, token, logprob)
            for beam, (total, tokens) in enumerate(zip(totals, likely, strict=True))
            for token, logprob in tokens
        )
        return [
            Candidate(beam, token, logprob, -negative) for negative, beam, token, logprob in nsmallest(count, found)
        ]

    def advance(self, candidates: Sequence[Candidate]) -> "Search":
        """The search after a step, whose candidates are ordered and say whether they end the output."""
        width, length = self.asked.width, self.length + 1
        if length >= self.max_tokens:
            full = Ending("length")
            candidates = [each if each.ending else each._replace(ending=full) for each in candidates]
        before = self.beams
        nodes = [
            Hypothesis(
                None if before is None else before[each.beam],
                each.token,
                each.logprob,
                each.total,
                length,
                each.ending,
                each.logprobs,
            )
            for each in candidates
        ]
        going = [place for place, node in enumerate(nodes) if node.ending is None][:width]
        # The best first; of equals those that have ended before.
        ended = sorted(
            (*self.finished, *(node for node in nodes[:width] if node.ending is not None)),
            key=lambda node: -self._penalized(node.total, node.length),
        )
        search = replace(
            self,
            beams=tuple(nodes[place] for place in going),
            beams_from=tuple(candidates[place].beam for place in going),
            finished=tuple(ended[:width]),
            length=length,
        )
        return replace(search, over=search._is_over())

    def _is_over(self) -> bool:
        if not self.beams:
            return True
        if len(self.finished) < self.asked.width:
            return False
        # One beam is what greedy decoding follows, which ends with its output.
        if self.asked.early_stopping is True or self.asked.width == 1:
            return True
        # The best beam's sum only falls, and may be divided by more.
        longest = self.asked.early_stopping == NEVER and self.asked.length_penalty > 0.0
        best = self._penalized(self.beams[0].total, self.max_tokens if longest else self.length)
        return best <= self._penalized(self.finished[-1].total, self.finished[-1].length)
