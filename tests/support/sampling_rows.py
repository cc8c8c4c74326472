"""Rows and plain references for the tests of sampling."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.core.plan import BeginRow
from penstock.core.sampling import SamplingParams
from penstock.sampling.row import GrammarState, ReasoningWatch, RowState, StopSearch

EOS = 2


def make_row(
    sequence: int = 0,
    *,
    prompt: Sequence[int] = (1, 3, 5),
    sample_index: int = 0,
    stops: StopSearch | None = None,
    reasoning: ReasoningWatch | None = None,
    grammar: GrammarState | None = None,
    **params: Any,
) -> RowState:
    """A row at its first output token; `params` as in SamplingParams, the seed 0 where none is given."""
    params.setdefault("seed", 0)
    begin = BeginRow(sequence, sample_index, list(prompt), SamplingParams(**params), (EOS,))
    return RowState(begin, prompt, stops=stops, reasoning=reasoning, grammar=grammar)


def make_samples(count: int, **params: Any) -> list[RowState]:
    """Rows of `count` samples of one prompt."""
    return [make_row(index, sample_index=index, n=count, **params) for index in range(count)]


def chi_square(observed: Sequence[int], probabilities: Sequence[float]) -> float:
    """Pearson's statistic in standard deviations above its mean, classes of probability 0 having to be empty."""
    counts, expected = np.asarray(observed, float), np.asarray(probabilities, float)
    assert counts[expected == 0].sum() == 0
    counts, expected = counts[expected > 0], expected[expected > 0] * counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5
