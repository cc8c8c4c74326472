"""What a token is drawn from, as probabilities: for rules that have to know them, as rejection sampling has."""

from typing import NamedTuple

import numpy as np

from penstock.sampling.choice import Choice
from penstock.sampling.draw import float_below, scaled
from penstock.sampling.exponential import exp
from penstock.sampling.noise import Doubles
from penstock.sampling.pipeline import NO_WEIGHT, Candidates, Floats, Ids, narrowing_steps


class Distribution(NamedTuple):
    """Probabilities of tokens.

    Attributes:
        ids: those that may be drawn, int64, ascending.
        probabilities: theirs, float64, which sum to 1.
    """

    ids: Ids
    probabilities: Doubles

    def of(self, token: int) -> float:
        """The probability of one token."""
        place = int(np.searchsorted(self.ids, token))
        there = place < self.ids.size and self.ids[place] == token
        return float(self.probabilities[place]) if there else 0.0


def certain(token: int) -> Distribution:
    """The distribution of what is always the same token."""
    return Distribution(np.array([token], np.int64), np.ones(1))


def distribution(logits: Floats, peak: float, choice: Choice) -> Distribution:
    """What `choice` draws from: `logits` [V], their largest being `peak` (finite), after temperature, top-k/p, min-p.

    Masks and edits are in the logits. At temperature 0 it is certain. Tokens so unlikely that no sum of float64 would
    change are left out.
    """
    if choice.temperature == 0.0:
        return certain(int(logits.argmax()))
    candidates = Candidates(logits, peak, choice.temperature)
    for step in narrowing_steps(choice):
        step.apply(candidates)
    ids = candidates.ids
    if ids is None:
        ids = (logits > float_below(peak + NO_WEIGHT * choice.temperature)).nonzero()[0]
    weights = exp(scaled(logits[ids], peak, choice.temperature))
    return Distribution(ids, weights / weights.sum())
