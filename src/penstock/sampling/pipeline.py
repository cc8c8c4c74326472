"""The logits pipeline: an ordered list of steps from the model's logits to the tokens that may be drawn.

Order: repetition, presence and frequency penalties; logit_bias; allowed_token_ids; bad_words; the min_tokens mask;
temperature; top-k; top-p; min-p.
The first group edits logits and can change the most likely token; log probabilities are read after it. The rest only
scales and narrows, never drops the most likely token, and is skipped at temperature 0. Tokens of equal logits rank by
id, the lower first, in every step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import RowFailed
from penstock.core.sampling import SamplingParams
from penstock.sampling.bad_words import BadWords
from penstock.sampling.choice import Choice
from penstock.sampling.draw import float_below, scaled
from penstock.sampling.exponential import exp
from penstock.sampling.history import TokenHistory

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

# exp(x) below this is less than half a unit in the last place of a sum that is at least 1 and cannot change it.
NO_WEIGHT = -37.0
# Far above the relative error of float32 exponentials and of their sum.
_EDGE = 1e-4
# Below this temperature float32 cannot tell the quotients from minus infinity.
_LEAST_TEMPERATURE = 1e-30


@dataclass(slots=True)
class Candidates:
    """One row on its way through the pipeline.

    Attributes:
        logits: float32 [V], contiguous; editing steps write to it.
        peak: the largest logit; set after the editing steps.
        temperature: what the differences to `peak` are divided by.
        ids: the survivors, None while all tokens are.
    """

    logits: Floats
    peak: float = 0.0
    temperature: float = 1.0
    ids: Ids | None = None

    def keep_best(self, count: int) -> None:
        """Keep the `count` first survivors in the order of (logit descending, id ascending)."""
        self.ids = best(self.logits, count, self.ids)


class EditingStep(Protocol):
    """A step that changes logits; the most likely token can be another one afterwards."""

    changes_argmax: ClassVar[bool]

    def apply(self, candidates: Candidates) -> None:
        """Edit the logits. Raises RowFailed where the row cannot be sampled."""


class NarrowingStep(Protocol):
    """A step that scales logits or drops tokens, never the most likely one."""

    changes_argmax: ClassVar[bool]

    def apply(self, candidates: Candidates) -> None:
        """Set the temperature or narrow the survivors."""

    def surely_keeps(self, candidates: Candidates, token: int) -> bool:
        """Whether `token` survives this step when it is applied to the whole row; False also where that is unsure."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """Repetition penalty over prompt and output, then frequency and presence penalties over the output.

    The repetition penalty divides positive and multiplies negative logits (Keskar et al., "CTRL", 2019).
    """

    changes_argmax: ClassVar[bool] = True
    history: TokenHistory
    repetition: float
    presence: float
    frequency: float

    def apply(self, candidates: Candidates) -> None:
        ids, counts = self.history.ids, self.history.counts
        values = candidates.logits[ids]
        if self.repetition != 1.0:
            factor = np.float32(self.repetition)
            values = np.where(values < 0, values * factor, values / factor)
        if self.frequency != 0.0 or self.presence != 0.0:
            values -= np.float32(self.frequency) * counts
            values -= np.float32(self.presence) * (counts > 0)
        candidates.logits[ids] = values


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Adds a constant to the logits of some tokens."""

    changes_argmax: ClassVar[bool] = True
    ids: Ids
    values: Floats

    def apply(self, candidates: Candidates) -> None:
        size = candidates.logits.size
        if self.ids.size and int(self.ids.max()) >= size:
            raise RowFailed(f"logit_bias names token {int(self.ids.max())}, but the model's ids are 0..{size - 1}.")
        candidates.logits[self.ids] += self.values


@dataclass(slots=True)
class AllowedTokens:
    """Masks all tokens but some."""

    changes_argmax: ClassVar[bool] = True
    ids: Sequence[int]
    _others: NDArray[np.bool_] | None = None

    def apply(self, candidates: Candidates) -> None:
        size = candidates.logits.size
        if self._others is None:
            # A token beyond the vocabulary can never be chosen and needs no place.
            ids = np.asarray(self.ids, np.int64)
            self._others = np.ones(size, np.bool_)
            self._others[ids[ids < size]] = False
        np.copyto(candidates.logits, -np.inf, where=self._others)


@dataclass(frozen=True, slots=True)
class ForbiddenWords:
    """Masks the tokens that would complete a sequence which must not be generated."""

    changes_argmax: ClassVar[bool] = True
    words: BadWords

    def apply(self, candidates: Candidates) -> None:
        ids = self.words.completing
        candidates.logits[ids[ids < candidates.logits.size]] = -np.inf


@dataclass(frozen=True, slots=True)
class MinTokens:
    """Masks the tokens that would end the output; part of the pipeline until min_tokens have been produced."""

    changes_argmax: ClassVar[bool] = True
    ids: Ids

    def apply(self, candidates: Candidates) -> None:
        # A stop token beyond the vocabulary can never be chosen and needs no mask.
        candidates.logits[self.ids[self.ids < candidates.logits.size]] = -np.inf


@dataclass(frozen=True, slots=True)
class Forced:
    """Leaves one token, whatever the others' logits are."""

    changes_argmax: ClassVar[bool] = True
    token: int

    def apply(self, candidates: Candidates) -> None:
        candidates.logits.fill(-np.inf)
        candidates.logits[self.token] = 0


@dataclass(frozen=True, slots=True)
class Temperature:
    """Sets what logits are divided by in the steps after it and in the draw."""

    changes_argmax: ClassVar[bool] = False
    value: float

    def apply(self, candidates: Candidates) -> None:
        candidates.temperature = self.value

    def surely_keeps(self, candidates: Candidates, token: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class TopK:
    """Keeps the k most likely tokens (Fan et al., "Hierarchical neural story generation", 2018)."""

    changes_argmax: ClassVar[bool] = False
    k: int

    def apply(self, candidates: Candidates) -> None:
        candidates.keep_best(self.k)

    def surely_keeps(self, candidates: Candidates, token: int) -> bool:
        # Finding the k best costs less than a draw from all tokens that is likely to miss them.
        return False


@dataclass(frozen=True, slots=True)
class TopP:
    """Keeps the most likely tokens up to the one whose probability brings their sum to p.

    Holtzman et al., "The curious case of neural text degeneration", 2020. Probabilities are those of the survivors so
    far, summed in float64 in the order of (logit descending, id ascending).
    """

    changes_argmax: ClassVar[bool] = False
    p: float

    def apply(self, candidates: Candidates) -> None:
        logits = candidates.logits if candidates.ids is None else candidates.logits[candidates.ids]
        weighty = logits[logits > float_below(candidates.peak + NO_WEIGHT * candidates.temperature)]
        weighty.sort()
        sums = np.cumsum(exp(scaled(weighty[::-1], candidates.peak, candidates.temperature)))
        candidates.keep_best(int(np.searchsorted(sums, self.p * sums[-1], side="left")) + 1)

    def surely_keeps(self, candidates: Candidates, token: int) -> bool:
        # The sum before a token is at most that of all tokens as likely or more, less its own. float32 suffices to
        # judge all but the few draws that fall near the edge.
        with np.errstate(over="ignore"):
            weights = np.subtract(candidates.logits, np.float32(candidates.peak))
            np.divide(weights, np.float32(max(candidates.temperature, _LEAST_TEMPERATURE)), out=weights)
        np.exp(weights, out=weights)
        ahead = float(weights[candidates.logits >= candidates.logits[token]].sum()) - float(weights[token])
        return ahead < (self.p - _EDGE) * float(weights.sum())


@dataclass(frozen=True, slots=True)
class MinP:
    """Keeps tokens at least min_p times as likely as the most likely one (Nguyen et al., "Min-p sampling", 2025)."""

    changes_argmax: ClassVar[bool] = False
    log_min_p: float

    def apply(self, candidates: Candidates) -> None:
        ids, peak, temperature = candidates.ids, candidates.peak, candidates.temperature
        if ids is None:
            ids = (candidates.logits > float_below(peak + 1.001 * self.log_min_p * temperature)).nonzero()[0]
        candidates.ids = ids[scaled(candidates.logits[ids], peak, temperature) >= self.log_min_p]

    def surely_keeps(self, candidates: Candidates, token: int) -> bool:
        logit = float(candidates.logits[token])
        return (logit - candidates.peak) / candidates.temperature >= self.log_min_p


def editing_steps(
    params: SamplingParams, history: TokenHistory | None, endings: Sequence[int], words: BadWords | None = None
) -> tuple[EditingStep, ...]:
    """The steps that change logits, in order.

    `history` is needed where `params.has_penalties`, and `words` where there are `bad_words_ids`; `endings` are the
    end-of-sequence and stop ids that the mask of min_tokens covers, empty once enough tokens were produced.
    """
    steps: list[EditingStep] = []
    if history is not None and params.has_penalties:
        steps.append(Penalties(history, params.repetition_penalty, params.presence_penalty, params.frequency_penalty))
    if params.logit_bias:
        ids = np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias))
        steps.append(LogitBias(ids, np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias))))
    if params.allowed_token_ids is not None:
        steps.append(AllowedTokens(params.allowed_token_ids))
    if words is not None:
        steps.append(ForbiddenWords(words))
    if endings:
        steps.append(MinTokens(np.asarray(endings, np.int64)))
    return tuple(steps)


def narrowing_steps(choice: Choice) -> tuple[NarrowingStep, ...]:
    """The steps that scale and narrow, in order; the temperature must be above 0."""
    steps: list[NarrowingStep] = []
    if choice.temperature != 1.0:
        steps.append(Temperature(choice.temperature))
    if choice.top_k > 0:
        steps.append(TopK(choice.top_k))
    if choice.top_p < 1.0:
        steps.append(TopP(choice.top_p))
    if choice.log_min_p > -math.inf:
        steps.append(MinP(choice.log_min_p))
    return tuple(steps)


def best(logits: Floats, count: int, ids: Ids | None = None) -> Ids:
    """The `count` ids with the largest logits among `ids` (None: all), ascending; ties go to the lower id.

    Where `ids` are given, they are ascending.
    """
    values = logits if ids is None else logits[ids]
    if count >= values.size:
        return np.arange(values.size) if ids is None else ids
    least = np.partition(values, values.size - count)[values.size - count]
    kept = values > least
    missing = count - int(np.count_nonzero(kept))
    kept[(values == least).nonzero()[0][:missing]] = True
    chosen: Ids = kept.nonzero()[0]
    return chosen if ids is None else ids[chosen]


def ranked(logits: Floats, ids: Ids) -> Ids:
    """Ascending `ids` in the order of (logit descending, id ascending)."""
    order: Ids = ids[np.argsort(-logits[ids], kind="stable")]
    return order
