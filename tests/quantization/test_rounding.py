"""Rounding by the native kernels against its meaning in torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.kernels.cpu.native import OBSTACLE
from penstock.quantization.rounding import reference_int4, reference_int8, round_int4, round_int8

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)


def restored(integers: Tensor, scales: Tensor, group: int) -> Tensor:
    wide = scales.float().repeat_interleave(group, dim=1)[:, : integers.shape[1]]
    return (integers.float() - 8) * wide


def squared_errors(weight: Tensor, integers: Tensor, scales: Tensor, group: int) -> Tensor:
    """Of each group, [outputs, groups]."""
    errors = (restored(integers, scales, group) - weight.float()).square()
    filled = torch.zeros(weight.shape[0], scales.shape[1] * group)
    filled[:, : weight.shape[1]] = errors
    return filled.view(*scales.shape, group).sum(2)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 150),
    group=st.sampled_from([16, 32, 64, 128]),
    size=st.sampled_from([1e-4, 0.02, 1.0, 300.0]),
    narrow=st.booleans(),
)
def test_int4_is_as_good_as_its_meaning(
    seed: int, outputs: int, inputs: int, group: int, size: float, narrow: bool
) -> None:
    """Candidates that are equally good but for rounding may be chosen differently, so errors are compared."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * size
    weight = weight.bfloat16() if narrow else weight
    mine, right = round_int4(weight, group), reference_int4(weight, group)
    assert mine[0].max() <= 15
    bound = 1.001 * squared_errors(weight, *right, group) + 1e-5 * size**2
    assert (squared_errors(weight, *mine, group) <= bound).all()


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
    largest = (weight.view(64, 32, 32).abs().amax(2) / 7).half()
    plain = (weight.view(64, 32, 32) / largest.float()[..., None]).round().clamp(-8, 7).view(64, -1) + 8
    searched = squared_errors(weight, *round_int4(weight), 32).sum()
    assert searched < 0.75 * squared_errors(weight, plain, largest, 32).sum()


def test_zeros_stay_zeros() -> None:
    integers, scales = round_int4(torch.zeros(3, 64))
    assert (restored(integers, scales, 32) == 0).all()
    integers, scales = round_int8(torch.zeros(3, 64))
    assert (integers == 0).all() and (scales == 0).all()


@pytest.mark.parametrize("value", [1.0, -3.5, 1e-6, 6.1e-5, 0.3, 60000.0])
def test_scales_are_the_nearest_halves(value: float) -> None:
    """A group of one value is that value over the integer it rounds to, as float16 stores it."""
    integers, scales = round_int4(torch.full((1, 32), value))
    integer = int(integers[0, 0]) - 8
    assert scales[0, 0] == torch.tensor(value / integer).half()
