"""What changed weights cost: a model's distributions against those of the unchanged one, on the same texts.

Positions of a text depend on one another, so texts are what was drawn at random: intervals are those of a mean over
clusters (Cochran, Sampling Techniques, 1977, section 9.5), at 95% where there are a dozen texts or more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# What is kept of each position.
_KL, _SAME, _CLEAR, _REFERENCE, _CANDIDATE, _ENTROPY = range(6)
# Where the reference's two best tokens are nearer to each other than this, which is first says little.
CLEAR_MARGIN = 0.1
STRATA = ("easy", "medium", "hard")
LATE = "late"
# What of each text is late.
_LATE_SHARE = 0.25
_DEVIATIONS = 1.96
_TAIL = 0.99
_LARGEST_EXPONENT = 700.0
# Positions that are compared at a time: probabilities of a large vocabulary take much memory.
_ROWS = 64


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over positions; the true one is within `margin` of it 19 times of 20. None: one text does not tell."""

    value: float
    margin: float | None


@dataclass(frozen=True, slots=True)
class Stratum:
    """Some of the positions.

    Attributes:
        name: of the third of all positions, by how sure the reference is of what follows: its entropy; or LATE.
        positions: how many they are.
        kl, same_top: as in Quality.
        perplexity_ratio: of the candidate's to the reference's.
    """

    name: str
    positions: int
    kl: Estimate
    same_top: Estimate
    perplexity_ratio: Estimate


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures over all positions of the texts compared.

    Attributes:
        texts, positions: how many there were.
        kl: mean Kullback-Leibler divergence from the reference's distribution to the candidate's, in nats.
        kl_tail: its 99th percentile.
        same_top: share of positions at which both have the same most likely token.
        clear_positions: those at which the reference's two best probabilities differ by more than CLEAR_MARGIN.
        clear_same_top: the same share among them.
        reference_perplexity, perplexity: of the text, by the reference and by the candidate.
        perplexity_ratio: of the latter to the former; its margin is far smaller than theirs, which share the texts'.
        probability_change: root of the mean square by which the text's own tokens' probabilities changed.
        strata: the same by difficulty.
        late: the same of the last quarter of each text's positions.
    """

    texts: int
    positions: int
    kl: Estimate
    kl_tail: float
    same_top: Estimate
    clear_positions: int
    clear_same_top: float
    reference_perplexity: Estimate
    perplexity: Estimate
    perplexity_ratio: Estimate
    probability_change: float
    strata: tuple[Stratum, ...]
    late: Stratum


@dataclass(slots=True)
class Comparison:
    """Adds texts up, one after another."""

    _texts: list[Tensor] = field(default_factory=list)

    def add(self, reference: Tensor, candidate: Tensor, tokens: Tensor) -> None:
        """Logits [positions, vocabulary] of both at the same positions of a text, and the tokens that follow there."""
        rows = [
            _columns(*part)
            for part in zip(reference.split(_ROWS), candidate.split(_ROWS), tokens.split(_ROWS), strict=True)
        ]
        self._texts.append(torch.cat(rows))

    def result(self) -> Quality:
        """The figures so far; raises ValueError where nothing was added."""
        if not any(len(text) for text in self._texts):
            raise ValueError("There is nothing to compare yet.")
        everything = torch.cat(self._texts)
        same, clear = everything[:, _SAME], everything[:, _CLEAR]
        change = (-everything[:, _CANDIDATE]).exp() - (-everything[:, _REFERENCE]).exp()
        return Quality(
            texts=len(self._texts),
            positions=len(everything),
            kl=_mean([text[:, _KL] for text in self._texts]),
            kl_tail=float(everything[:, _KL].quantile(_TAIL)),
            same_top=_mean([text[:, _SAME] for text in self._texts]),
            clear_positions=int(clear.sum()),
            clear_same_top=float(same[clear > 0].mean()),
            reference_perplexity=_exponential(_mean([text[:, _REFERENCE] for text in self._texts])),
            perplexity=_exponential(_mean([text[:, _CANDIDATE] for text in self._texts])),
            perplexity_ratio=_exponential(_mean([text[:, _CANDIDATE] - text[:, _REFERENCE] for text in self._texts])),
            probability_change=float(change.square().mean().sqrt()),
            strata=self._strata(everything[:, _ENTROPY]),
            late=_stratum(LATE, [text[int(len(text) * (1 - _LATE_SHARE)) :] for text in self._texts]),
        )

    def _strata(self, entropy: Tensor) -> tuple[Stratum, ...]:
        """Thirds of the positions, from those where the reference is surest."""
        bounds = [-math.inf, *entropy.quantile(torch.tensor([1 / 3, 2 / 3], dtype=entropy.dtype)).tolist(), math.inf]
        found = []
        for name, low, high in zip(STRATA, bounds, bounds[1:], strict=False):
            parts = [text[(text[:, _ENTROPY] > low) & (text[:, _ENTROPY] <= high)] for text in self._texts]
            if any(len(part) for part in parts):
                found.append(_stratum(name, parts))
        return tuple(found)


def _stratum(name: str, parts: Sequence[Tensor]) -> Stratum:
    """The figures of some positions of each text."""
    kl, same = (_mean([part[:, column] for part in parts]) for column in (_KL, _SAME))
    ratio = _exponential(_mean([part[:, _CANDIDATE] - part[:, _REFERENCE] for part in parts]))
    return Stratum(name, sum(len(part) for part in parts), kl, same, ratio)


def _columns(reference: Tensor, candidate: Tensor, tokens: Tensor) -> Tensor:
    """What is kept of some positions: [positions, 6]."""
    right = torch.log_softmax(reference.double(), -1)
    found = torch.log_softmax(candidate.double(), -1)
    probabilities = right.exp()
    best = probabilities.topk(2, -1)
    at = tokens[:, None]
    # Where the reference has no doubt at all, 0 · -inf is 0.
    weighted = torch.where(probabilities > 0, probabilities * right, 0.0)
    columns = (
        torch.where(probabilities > 0, probabilities * (right - found), 0.0).sum(-1),
        (best.indices[:, 0] == found.argmax(-1)).double(),
        (best.values[:, 0] - best.values[:, 1] > CLEAR_MARGIN).double(),
        -right.gather(1, at)[:, 0],
        -found.gather(1, at)[:, 0],
        -weighted.sum(-1),
    )
    return torch.stack(columns, dim=1)


def _mean(texts: Sequence[Tensor]) -> Estimate:
    """The mean over all positions of texts [positions], as a ratio of two sums over texts."""
    texts = [text for text in texts if len(text)]
    count = sum(len(text) for text in texts)
    mean = float(sum(text.sum() for text in texts)) / count
    if len(texts) < 2:
        return Estimate(mean, None)
    squares = sum(float((text - mean).sum()) ** 2 for text in texts)
    return Estimate(mean, _DEVIATIONS * math.sqrt(squares * len(texts) / (len(texts) - 1)) / count)


def _exponential(logarithm: Estimate) -> Estimate:
    """The same of e to its power, by the upper margin, which is the larger one."""
    value, margin = _power(logarithm.value), logarithm.margin
    return Estimate(value, None if margin is None else value * (_power(margin) - 1))


def _power(exponent: float) -> float:
    """e to it; infinite where that is no number any more."""
    return math.inf if exponent > _LARGEST_EXPONENT else math.exp(exponent)
