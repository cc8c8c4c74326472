"""Rounding by the native kernels against its meaning in torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import INT4_GROUP, ZERO_AT_SEVEN
from penstock.quantization.rounding import reference_int4, reference_int8, round_int4, round_int8

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)


def restored(integers: Tensor, multiples: Tensor, scales: Tensor) -> Tensor:
    """What the three stand for, in float32."""
    wide = multiples.int().repeat_interleave(INT4_GROUP, dim=1)[:, : integers.shape[1]]
    zeros = 8 - wide // ZERO_AT_SEVEN
    return (wide % ZERO_AT_SEVEN) * (integers.int() - zeros) * scales[:, None]


def squared_errors(weight: Tensor, integers: Tensor, multiples: Tensor, scales: Tensor) -> Tensor:
    """Of each group, [outputs, groups]."""
    errors = torch.zeros(weight.shape[0], multiples.shape[1] * INT4_GROUP)
    errors[:, : weight.shape[1]] = (restored(integers, multiples, scales) - weight.float()).square()
    return errors.view(*multiples.shape, INT4_GROUP).sum(2)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 150),
    size=st.sampled_from([1e-4, 0.02, 1.0, 300.0, 1e15]),
    narrow=st.booleans(),
)
def test_int4_is_as_good_as_its_meaning(seed: int, outputs: int, inputs: int, size: float, narrow: bool) -> None:
    """Candidates that are equally good but for rounding may be chosen differently, so errors are compared.

    How rarely that is, `test_int4_is_its_meaning_nearly_everywhere` shows.
    """
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * size
    weight = weight.bfloat16() if narrow else weight
    mine, right = round_int4(weight), reference_int4(weight)
    assert mine[0].max() <= 15 and mine[1].max() < 2 * ZERO_AT_SEVEN
    found, expected = squared_errors(weight, *mine), squared_errors(weight, *right)
    assert (found <= 1.5 * expected + 1e-5 * size**2).all()
    assert found.sum() <= 1.1 * expected.sum() + 1e-5 * size**2


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e21])
def test_int4_is_its_meaning_nearly_everywhere(size: float) -> None:
    weight = torch.randn(128, 1000, generator=torch.Generator().manual_seed(0)) * size
    mine, right = round_int4(weight), reference_int4(weight)
    torch.testing.assert_close(mine[2], right[2], rtol=1e-5, atol=0)
    assert (mine[1] == right[1]).float().mean() > 0.99 and (mine[0] == right[0]).float().mean() > 0.99


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), outputs=st.integers(1, 20), inputs=st.integers(1, 150), narrow=st.booleans())
def test_int8_is_its_meaning(seed: int, outputs: int, inputs: int, narrow: bool) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    weight = weight.bfloat16() if narrow else weight
    integers, scales = round_int8(weight)
    expected, right = reference_int8(weight)
    assert torch.equal(integers, expected)
    assert torch.equal(scales, right)


def test_the_search_beats_the_largest_value() -> None:
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    groups = weight.view(64, 32, 32)
    largest = groups.abs().amax(2, keepdim=True) / 7
    plain = (groups - (groups / largest).round().clamp(-8, 7) * largest).square().sum()
    assert squared_errors(weight, *round_int4(weight)).sum() < 0.75 * plain


def test_int4_holds_an_output_with_an_outlier_as_int8_does() -> None:
    """One value a hundred times as large as the others makes their steps those of int8, not coarser."""
    weight = torch.randn(16, 1024, generator=torch.Generator().manual_seed(0))
    weight[:, 500] = 100.0
    integers, scales = round_int8(weight)
    others = torch.arange(1024) // INT4_GROUP != 500 // INT4_GROUP
    by_int8 = (weight - integers * scales[:, None]).square()[:, others].sum()
    by_int4 = (weight - restored(*round_int4(weight))).square()[:, others].sum()
    assert by_int4 < 1.3 * by_int8


def test_zeros_stay_zeros() -> None:
    assert (restored(*round_int4(torch.zeros(3, 64))) == 0).all()
    integers, scales = round_int8(torch.zeros(3, 64))
    assert (integers == 0).all() and (scales == 0).all()


@pytest.mark.parametrize("value", [1.0, -3.5, 1e-6, 6.1e-5, 0.3, 60000.0, 1.2e30])
def test_equal_values_are_kept(value: float) -> None:
    """Whatever its size: the scale is a float32."""
    torch.testing.assert_close(
        restored(*round_int4(torch.full((1, 32), value))), torch.full((1, 32), value), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_the_scale(broken: float) -> None:
    weight = torch.randn(4, 64)
    weight[2, 40] = broken
    for scales in (round_int4(weight)[-1], round_int8(weight)[-1]):
        assert scales.isfinite().tolist() == [True, True, False, True]
