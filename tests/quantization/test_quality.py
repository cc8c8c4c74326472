"""The figures by hand, and what int8 and int4 cost on the bundled model."""

import math

import pytest
import torch

from benchmarks.quantization_quality import measure
from penstock.kernels.cpu.native import OBSTACLE
from penstock.quantization.quality import Comparison


def test_figures_are_what_they_say() -> None:
    reference = torch.tensor([[0.5, 0.3, 0.2], [0.45, 0.4, 0.15]]).log()
    candidate = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.7, 0.1]]).log()
    comparison = Comparison()
    comparison.add(reference[:1], candidate[:1] + 5.0, torch.tensor([2]))
    comparison.add(reference[1:] - 3.0, candidate[1:], torch.tensor([1]))
    found = comparison.result()
    first = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.4)
    second = 0.45 * math.log(0.45 / 0.2) + 0.4 * math.log(0.4 / 0.7) + 0.15 * math.log(0.15 / 0.1)
    assert found.kl == pytest.approx((first + second) / 2)
    assert (found.positions, found.clear_positions) == (2, 1)
    assert found.same_top == 0.5 and found.clear_same_top == 1.0
    assert found.reference_perplexity == pytest.approx((0.2 * 0.4) ** -0.5)
    assert found.perplexity == pytest.approx((0.2 * 0.7) ** -0.5)


def test_nothing_compared_is_no_result() -> None:
    with pytest.raises(ValueError, match="nothing"):
        Comparison().result()


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
def test_rounding_costs_the_bundled_model_little() -> None:
    found = measure("haiku", 12)
    assert found["float32"].kl < 1e-8 and found["float32"].same_top == 1.0
    assert found["int8"].kl <= 0.002 and found["int8"].clear_same_top >= 0.995
    assert found["int4"].kl <= 0.05 and found["int4"].clear_same_top >= 0.97
    assert found["int4, int8 head"].kl < found["int4"].kl
