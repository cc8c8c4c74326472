"""Rounding to the nearest, and with the error made up for."""

import pytest
import torch
from torch import Tensor

from penstock.quantization.gptq import Hessian, output_error, quantize_gptq
from penstock.quantization.rtn import Grid, quantize_rtn


def layer(outputs: int = 48, inputs: int = 192, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Weights, and the Hessian of inputs that depend on one another, some much larger than others."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    mixed = torch.randn(inputs, inputs, generator=generator) / inputs**0.5 + torch.eye(inputs) * 0.5
    x = torch.randn(1000, inputs, generator=generator) @ mixed
    x *= torch.rand(inputs, generator=generator) ** 3 * 4
    hessian = Hessian(inputs)
    for part in x.split(300):
        hessian.add(part)
    return weight, hessian.mean()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("searched", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 64), (4, 32), (4, 0), (8, 96)])
def test_rounding_to_the_nearest_is_within_half_a_step(bits: int, group: int, searched: bool, symmetric: bool) -> None:
    weight, _ = layer()
    found = quantize_rtn(weight, Grid(bits, group, symmetric, searched))
    assert int(found.integers.max()) < 1 << bits
    spread = found.scales.float().repeat_interleave(192 // found.scales.shape[1], dim=1)
    error = (found.numbers() - weight).abs() / spread
    # The largest weights of a symmetric grid may be half a step beyond its end, and searched ones farther.
    assert searched or error.max() <= 1.01
    assert error.quantile(0.5) <= 0.5


def test_searched_scales_leave_a_smaller_error() -> None:
    weight, _ = layer()
    plain, searched = (quantize_rtn(weight, Grid(3, 64, True, each)).numbers() for each in (False, True))
    assert (searched - weight).square().sum() < 0.9 * (plain - weight).square().sum()


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 32), (4, 32), (4, 64), (4, 0)])
def test_the_error_of_outputs_is_smaller(bits: int, group: int, symmetric: bool, act_order: bool) -> None:
    weight, hessian = layer()
    grid = Grid(bits, group, symmetric)
    nearest = output_error(weight, quantize_rtn(weight, grid).numbers(), hessian)
    found = output_error(weight, quantize_gptq(weight, hessian, grid, act_order=act_order).numbers(), hessian)
    assert found < 0.8 * nearest


def test_the_order_of_inputs_helps_where_they_differ() -> None:
    weight, hessian = layer()
    grid = Grid(3, 64)
    ordered, plain = (
        output_error(weight, quantize_gptq(weight, hessian, grid, act_order=each).numbers(), hessian)
        for each in (True, False)
    )
    assert ordered < plain


def test_inputs_that_do_not_depend_on_one_another_are_rounded_to_the_nearest() -> None:
    weight, _ = layer()
    grid = Grid(4, 32)
    found = quantize_gptq(weight, torch.eye(192), grid)
    expected = quantize_rtn(weight, grid)
    assert torch.equal(found.integers, expected.integers) and torch.equal(found.scales, expected.scales)


def test_weights_on_the_grid_stay() -> None:
    _, hessian = layer()
    weight = torch.randint(-8, 8, (48, 192)).float() * 0.25
    weight[:, ::32] = -2.0
    weight[:, 1::32] = 1.75
    # The largest magnitude is 7.5 steps of the grid, and 8 of these weights' own.
    grid = Grid(4, 32, symmetric=False)
    assert torch.equal(quantize_gptq(weight, hessian, grid).numbers(), weight)


def test_inputs_that_never_occur_cost_nothing() -> None:
    weight, hessian = layer()
    hessian[7] = hessian[:, 7] = 0
    grid = Grid(4, 32)
    found = quantize_gptq(weight, hessian, grid)
    assert found.numbers()[:, 7].abs().max() == 0
    assert output_error(weight, found.numbers(), hessian) < 0.02


def test_a_hessian_of_few_inputs_is_damped_until_it_works() -> None:
    weight, _ = layer()
    hessian = Hessian(192)
    hessian.add(torch.randn(3, 192, generator=torch.Generator().manual_seed(1)) * 1e4)
    found = quantize_gptq(weight, hessian.mean(), Grid(4, 32))
    assert bool(found.numbers().isfinite().all())


def test_what_cannot_be_rounded() -> None:
    weight, hessian = layer()
    with pytest.raises(ValueError, match="groups of 128"):
        quantize_gptq(weight, hessian, Grid(4, 128))
    with pytest.raises(ValueError, match="not in groups"):
        quantize_rtn(weight, Grid(4, 128))
    with pytest.raises(ValueError, match="finite"):
        quantize_gptq(weight, hessian * torch.nan, Grid(4, 32))
    with pytest.raises(ValueError, match="calibrate"):
        Hessian(4).mean()
