"""The figures by hand."""

import math

import pytest
import torch

from penstock.quantization.quality import Comparison, Quality


def test_figures_are_what_they_say() -> None:
    reference = torch.tensor([[0.5, 0.3, 0.2], [0.45, 0.4, 0.15]]).log()
    candidate = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.7, 0.1]]).log()
    comparison = Comparison()
    comparison.add(reference[:1], candidate[:1] + 5.0, torch.tensor([2]))
    comparison.add(reference[1:] - 3.0, candidate[1:], torch.tensor([1]))
    found = comparison.result()
    first = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.4)
    second = 0.45 * math.log(0.45 / 0.2) + 0.4 * math.log(0.4 / 0.7) + 0.15 * math.log(0.15 / 0.1)
    assert found.kl.value == pytest.approx((first + second) / 2)
    assert (found.texts, found.positions, found.clear_positions) == (2, 2, 1)
    assert found.same_top.value == 0.5 and found.clear_same_top == 1.0
    assert found.reference_perplexity.value == pytest.approx((0.2 * 0.4) ** -0.5)
    assert found.perplexity.value == pytest.approx((0.2 * 0.7) ** -0.5)
    assert found.perplexity_ratio.value == pytest.approx((0.4 / 0.7) ** 0.5)
    assert found.probability_change == pytest.approx(0.3 / math.sqrt(2))
    # Of two texts the deviation of the mean is half of their difference.
    assert found.kl.margin == pytest.approx(1.96 * abs(first - second) / 2)


def test_nothing_compared_is_no_result() -> None:
    with pytest.raises(ValueError, match="nothing"):
        Comparison().result()


def test_one_text_has_no_margin() -> None:
    comparison = Comparison()
    comparison.add(torch.randn(5, 7), torch.randn(5, 7), torch.arange(5))
    found = comparison.result()
    assert found.kl.margin is None and found.perplexity.margin is None and found.kl.value > 0


def compared(generator: torch.Generator, texts: int, worse: float) -> Quality:
    """Positions that are easy and hard by turns; the candidate is worse at the hard ones only."""
    comparison = Comparison()
    for _ in range(texts):
        logits = torch.randn(30, 11, generator=generator, dtype=torch.float64)
        logits[::2] *= 9
        candidate = logits.clone()
        candidate[1::2] += worse * torch.randn(15, 11, generator=generator, dtype=torch.float64)
        tokens = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0]
        comparison.add(logits, candidate, tokens)
    return comparison.result()


def test_difficulty_shows_where_the_loss_is() -> None:
    found = compared(torch.Generator().manual_seed(1), 20, 0.3)
    easy, medium, hard = found.strata
    assert [each.name for each in found.strata] == ["easy", "medium", "hard"]
    assert sum(each.positions for each in found.strata) == found.positions == 600
    assert easy.kl.value < 1e-9 < found.kl.value < hard.kl.value
    assert easy.perplexity_ratio.value == pytest.approx(1.0) and medium.positions == pytest.approx(200, abs=1)


def test_margins_hold_the_truth_as_often_as_they_say() -> None:
    generator = torch.Generator().manual_seed(2)
    truth = compared(generator, 2000, 0.3)
    trials = [compared(generator, 12, 0.3) for _ in range(120)]
    held = 0
    for trial in trials:
        assert trial.kl.margin is not None
        held += abs(trial.kl.value - truth.kl.value) <= trial.kl.margin
    # With twelve texts the normal approximation is a little narrow: 92 or 93 of 100.
    assert 0.84 <= held / len(trials) <= 0.99


def test_a_candidate_that_is_broken_altogether() -> None:
    comparison = Comparison()
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(70, 7, generator=generator)
        comparison.add(logits, logits * -1e5, logits.argmax(-1))
    found = comparison.result()
    assert found.perplexity.value == math.inf and found.positions == 210
