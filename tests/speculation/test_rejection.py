"""Drafts that are accepted by chance leave the target's distribution as it is."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from penstock.core.errors import RowFailed
from penstock.sampling.distribution import Distribution, certain, distribution
from penstock.sampling.noise import Purpose
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Sampler
from penstock.speculation.rejection import judged, residual
from penstock.speculation.verifier import DraftedRow, verify
from support.endings import finish_of
from support.sampling_rows import make_row

VOCABULARY = 10
SAMPLES = [2_500, pytest.param(100_000, marks=pytest.mark.slow)]
FLAT, PEAKED = [0.0] * VOCABULARY, [6.0, *[0.0] * 9]
SLOPE = [0.4 * place for place in range(VOCABULARY)]
LOW, HIGH = [4.0] * 5 + [-60.0] * 5, [-60.0] * 5 + [4.0] * 5
# What the target has, what the draft has, and how both are sampled.
PAIRS: dict[str, tuple[Sequence[float], Sequence[float], dict[str, Any]]] = {
    "equal": (SLOPE, SLOPE, {}),
    "opposed": (SLOPE, SLOPE[::-1], {"temperature": 0.7}),
    "disjoint": (LOW, HIGH, {}),
    "peaked target": (PEAKED, FLAT, {"temperature": 1.5}),
    "peaked draft": (FLAT, PEAKED, {}),
    "cut by top-p": (SLOPE, SLOPE[::-1], {"top_p": 0.6}),
    "cut by top-k": (SLOPE, FLAT, {"top_k": 4}),
    "cut by min-p": (SLOPE, PEAKED, {"min_p": 0.2, "temperature": 1.3}),
    "biased": (SLOPE, FLAT, {"logit_bias": {3: 2.0}}),
}


def row_of(seed: int, **params: Any) -> RowState:
    return make_row(seed, seed=seed, **{"temperature": 1.0, "ignore_eos": True, **params})


def chi_squared(counts: Counter[Any], expected: dict[Any, float]) -> float:
    """The probability of counts this far from what is expected, or further; cells of too few are taken together."""
    total = sum(counts.values())
    assert all(expected.get(cell, 0.0) > 0 for cell in counts), "what cannot be has come"
    cells = [(counts[cell], total * chance) for cell, chance in expected.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    if sum(wanted for _, wanted in small) >= 5:
        large.append((sum(found for found, _ in small), sum(wanted for _, wanted in small)))
    distance = sum((found - wanted) ** 2 / wanted for found, wanted in large)
    degrees = torch.tensor((len(large) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(distance / 2, dtype=torch.float64)))


def drawn(logits: torch.Tensor, rows: Sequence[RowState], index: int) -> tuple[list[int], list[Distribution]]:
    """What a draft model draws for each row, and what from."""
    sampler = Sampler(VOCABULARY)
    choices = [row.choice(index)._replace(purpose=int(Purpose.DRAFT), logprobs=-1) for row in rows]
    return sampler.guess(logits, choices), sampler.distributions(logits, choices)


def first_tokens(
    target: Sequence[float], draft: Sequence[float], params: dict[str, Any], samples: int
) -> tuple[Counter[int], int]:
    """How often each token comes first, and how many drafts were kept."""
    rows = [row_of(seed, **params) for seed in range(samples)]
    tokens, sources = drawn(torch.tensor([draft]), rows, 0)
    asked = [DraftedRow(row, 0, [token], [source]) for row, token, source in zip(rows, tokens, sources, strict=True)]
    results = verify(Sampler(VOCABULARY), torch.tensor([target, FLAT]), asked, rejects=True)
    return Counter(result.gained.tokens[0] for result in results), sum(
        len(result.gained.tokens) == 2 for result in results
    )


def exactly(target: Sequence[float], params: dict[str, Any]) -> dict[int, float]:
    """Probabilities by the definitions of softmax, bias, top-k, top-p and min-p, written down once more."""
    logits = np.array(target, np.float64)
    for token, bias in params.get("logit_bias", {}).items():
        logits[token] += bias
    weights = np.exp((logits - logits.max()) / params.get("temperature", 1.0))
    order = np.argsort(-weights, kind="stable")
    kept = order[: params.get("top_k") or VOCABULARY]
    sums = np.cumsum(weights[kept])
    kept = kept[: int(np.searchsorted(sums, params.get("top_p", 1.0) * sums[-1], side="left")) + 1]
    kept = [token for token in kept if weights[token] >= params.get("min_p", 0.0)]
    total = weights[kept].sum()
    return {int(token): float(weights[token] / total) for token in kept}


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_distribution_is_the_targets(pair: str, samples: int) -> None:
    target, draft, params = PAIRS[pair]
    counts, kept = first_tokens(target, draft, params, samples)
    expected = {token: chance for token, chance in exactly(target, params).items() if chance > 1e-12}
    assert chi_squared(counts, expected) > 1e-3
    unbiased = {name: value for name, value in params.items() if name != "logit_bias"}
    others = exactly(draft, params if pair == "equal" else unbiased)
    share = sum(min(chance, others.get(token, 0.0)) for token, chance in exactly(target, params).items())
    # The part of drafts that is kept is what the two distributions have in common.
    assert abs(kept / samples - share) < 5 * math.sqrt(0.25 / samples)


@pytest.mark.parametrize("samples", SAMPLES)
def test_a_draft_that_was_certain(samples: int) -> None:
    """As what is found in the sequence's own text: there is nothing that it was drawn from."""
    rows = [DraftedRow(row_of(seed), 0, [7]) for seed in range(samples)]
    results = verify(Sampler(VOCABULARY), torch.tensor([SLOPE, FLAT]), rows, rejects=True)
    assert chi_squared(Counter(result.gained.tokens[0] for result in results), exactly(SLOPE, {})) > 1e-3
    kept = sum(len(result.gained.tokens) == 2 for result in results) / samples
    assert abs(kept - exactly(SLOPE, {})[7]) < 5 * math.sqrt(0.25 / samples)


@pytest.mark.parametrize("samples", SAMPLES)
def test_a_bias_is_found(samples: int) -> None:
    """A draft drawn at a temperature, judged as if it had been drawn without."""
    rows = [row_of(seed, temperature=0.5) for seed in range(samples)]
    tokens, _ = drawn(torch.tensor([SLOPE[::-1]]), rows, 0)
    wrong = distribution(np.array(SLOPE[::-1], np.float32), SLOPE[-1], row_of(0).choice(0))
    asked = [DraftedRow(row, 0, [token], [wrong]) for row, token in zip(rows, tokens, strict=True)]
    results = verify(Sampler(VOCABULARY), torch.tensor([SLOPE, FLAT]), asked, rejects=True)
    counts = Counter(result.gained.tokens[0] for result in results)
    assert chi_squared(counts, exactly(SLOPE, {"temperature": 0.5})) < 1e-3


@pytest.mark.parametrize("samples", SAMPLES)
def test_tokens_behind_one_another(samples: int) -> None:
    """The second token's distribution depends on the first, whether that was a draft or came for one."""
    behind = [[float((3 * token * place) % 7) / 2 for place in range(VOCABULARY)] for token in range(VOCABULARY)]
    # For each first token: the logits before it, those behind it, and some more.
    logits = torch.tensor([each for token in range(VOCABULARY) for each in (SLOPE, behind[token], FLAT)])
    rows = [row_of(seed) for seed in range(samples)]
    first, first_sources = drawn(torch.tensor([SLOPE[::-1]]), rows, 0)
    later = [row_of(seed) for seed in range(samples)]
    for row in later:
        row.advance(0)
    second, second_sources = drawn(torch.tensor([PEAKED]), later, 0)
    asked = [
        DraftedRow(row, 3 * drafts[0], drafts, sources)
        for row, drafts, sources in zip(
            rows, zip(first, second, strict=True), zip(first_sources, second_sources, strict=True), strict=True
        )
    ]
    results = verify(Sampler(VOCABULARY), logits, asked, rejects=True)
    short = [place for place, result in enumerate(results) if len(result.gained.tokens) == 1]
    more = verify(
        Sampler(VOCABULARY),
        logits,
        [DraftedRow(rows[place], 3 * results[place].gained.tokens[0] + 1) for place in short],
    )
    outputs = [tuple(result.gained.tokens[:2]) for result in results]
    for place, result in zip(short, more, strict=True):
        outputs[place] = (results[place].gained.tokens[0], result.gained.tokens[0])
    expected = {
        (token, other): chance * then
        for token, chance in exactly(SLOPE, {}).items()
        for other, then in exactly(behind[token], {}).items()
    }
    assert 0 < len(short) < samples and chi_squared(Counter(outputs), expected) > 1e-3


def test_greedy_rows_are_as_ever() -> None:
    """Where one token may come, a draft is right or wrong."""
    for draft, tokens in ((9, [9, 0]), (8, [9])):
        row = row_of(0, temperature=0.0, logprobs=1)
        (result,) = verify(
            Sampler(VOCABULARY), torch.tensor([SLOPE, FLAT]), [DraftedRow(row, 0, [draft])], rejects=True
        )
        assert (result.gained.tokens, result.drafted) == (tokens, 1) and len(result.gained.logprobs or ()) == len(
            tokens
        )


def test_log_probabilities_are_the_models_own() -> None:
    for seed in range(50):
        row = row_of(seed, temperature=2.0, logprobs=2)
        (result,) = verify(Sampler(VOCABULARY), torch.tensor([SLOPE, FLAT]), [DraftedRow(row, 0, [3])], rejects=True)
        (entry, *_) = result.gained.logprobs or ()
        assert entry.token == result.gained.tokens[0] and entry.top_tokens == [9, 8]
        assert entry.logprob == pytest.approx(math.log(exactly(SLOPE, {})[entry.token]), abs=1e-5)


def test_what_cannot_be_sampled_fails_alone() -> None:
    nothing = torch.tensor([SLOPE, [math.nan] * VOCABULARY, FLAT, FLAT])
    rows = [DraftedRow(row_of(0), 1, [3]), DraftedRow(row_of(1), 0, [3])]
    broken, fine = verify(Sampler(VOCABULARY), nothing, rows, rejects=True)
    assert finish_of(broken.gained) == "error" and not broken.gained.tokens
    assert broken.gained.ending and "NaN" in (broken.gained.ending.error or "")
    assert finish_of(fine.gained) in (None, "error") and len(fine.gained.tokens) >= 1


def test_residual_of_equals_is_the_target() -> None:
    """The difference of equals is nothing, and that cannot be drawn from."""
    same = distribution(np.array(SLOPE, np.float32), SLOPE[-1], row_of(0).choice(0))
    assert residual(same, same) is same
    assert judged(certain(4), 4, certain(4), row_of(0).choice(0)) == 4
    assert judged(certain(4), 5, certain(5), row_of(0).choice(0)) == 4


def test_targets_that_nothing_is_left_of_fail() -> None:
    with pytest.raises(RowFailed, match="infinite"):
        Sampler(VOCABULARY).target(torch.full((1, VOCABULARY), math.inf), row_of(0), 0)
