"""Inputs that are made larger before weights are rounded."""

import pytest
import torch
from torch import Tensor

from penstock.quantization.awq import migrated, powers_of_two, search_factors
from penstock.quantization.gptq import Hessian, output_error
from penstock.quantization.rtn import Grid, quantize_rtn


def layer(loud: float) -> tuple[Tensor, Hessian]:
    """Weights, and what was seen of inputs of which every 32nd is so much larger than others."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(96, 128, generator=generator)
    x = torch.randn(600, 128, generator=generator)
    x[:, ::32] *= loud
    seen = Hessian(128)
    seen.add(x)
    return weight, seen


@pytest.mark.parametrize(("bits", "group"), [(3, 32), (4, 64), (4, 0)])
def test_inputs_that_matter_are_rounded_more_finely(bits: int, group: int) -> None:
    weight, seen = layer(loud=30)
    hessian, grid = seen.mean(), Grid(bits, group)
    factors = search_factors(weight, hessian.diagonal().sqrt(), hessian, grid)
    assert factors[::32].min() > 1.5 * factors.median()
    nearest = output_error(weight, quantize_rtn(weight, grid).numbers(), hessian)
    found = output_error(weight, quantize_rtn(weight * factors, grid).numbers() / factors, hessian)
    assert found < 0.7 * nearest


def test_powers_of_two_pay_too() -> None:
    weight, seen = layer(loud=30)
    hessian, grid = seen.mean(), Grid(4, 64)
    factors = search_factors(weight, hessian.diagonal().sqrt(), hessian, grid, powers=True)
    assert torch.equal(torch.exp2(factors.log2().round()), factors) and len(factors.unique()) > 1
    assert torch.equal(powers_of_two(torch.tensor([0.7, 0.72, 1.4, 1.42])), torch.tensor([0.5, 1.0, 1.0, 2.0]))
    nearest = output_error(weight, quantize_rtn(weight, grid).numbers(), hessian)
    found = output_error(weight, quantize_rtn(weight * factors, grid).numbers() / factors, hessian)
    assert found < 0.8 * nearest


def test_equal_inputs_have_equal_factors() -> None:
    weight, seen = layer(loud=1)
    assert torch.equal(search_factors(weight, torch.ones(128), seen.mean(), Grid(4, 32)), torch.ones(128))


def test_inputs_that_never_occur_do_no_harm() -> None:
    weight, seen = layer(loud=0)
    hessian = seen.mean()
    for factors in (
        search_factors(weight, hessian.diagonal().sqrt(), hessian, Grid(4, 32)),
        migrated(weight, seen.largest),
        migrated(torch.zeros(4, 8), torch.zeros(8)),
    ):
        assert bool((factors > 0).all()) and bool(factors.isfinite().all())


def test_what_is_hard_to_round_is_shared() -> None:
    weight, seen = layer(loud=30)
    factors = migrated(weight, seen.largest)
    inputs, weights = seen.largest / factors, weight.abs().amax(0) * factors
    ratios = inputs / weights
    assert ratios.max() < 1.001 * ratios.min()
    assert inputs.max() / inputs.min() < 0.3 * seen.largest.max() / seen.largest.min()


def test_scales_are_searched_by_what_inputs_are_like() -> None:
    weight, seen = layer(loud=30)
    hessian, grid = seen.mean(), Grid(3, 32, searched=True)
    plain, found = (quantize_rtn(weight, grid, by).numbers() for by in (None, hessian))
    assert output_error(weight, found, hessian) < 0.8 * output_error(weight, plain, hessian)
    # By inputs that are all alike and apart, it is the squared error.
    assert torch.equal(quantize_rtn(weight, grid, torch.eye(128)).numbers(), plain)
