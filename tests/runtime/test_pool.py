"""Vectors of hidden states: the same bits however they came in, and of length 1."""

import math

import numpy as np
import pytest
import torch

from penstock.core.errors import RowFailed
from penstock.runtime.pool import LENGTH_ONE, Pool


def pooled(states: torch.Tensor, *cuts: int) -> np.ndarray:
    """The vector of `states`, which come in parts."""
    pool = Pool("mean", 0, len(states))
    for first, end in zip((0, *cuts), (*cuts, len(states)), strict=True):
        pool.add(states[first:end])
    assert pool.is_complete
    return np.frombuffer(LENGTH_ONE(pool), np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_vector_is_the_mean_with_length_1(dtype: torch.dtype) -> None:
    states = torch.randn(37, 96, generator=torch.Generator().manual_seed(1)).to(dtype) * 50
    mean = states.double().mean(0).numpy()
    np.testing.assert_allclose(pooled(states), mean / np.linalg.norm(mean), rtol=1e-6)
    assert math.isclose(np.linalg.norm(pooled(states).astype(np.float64)), 1.0, rel_tol=1e-6)


def test_the_parts_change_no_bit() -> None:
    states = torch.randn(64, 33, generator=torch.Generator().manual_seed(2)) * torch.logspace(-6, 6, 64)[:, None]
    whole = pooled(states)
    for cuts in ((1,), (5, 6, 40), tuple(range(1, 64)), (0, 64)):
        assert pooled(states, *cuts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_what_has_no_direction_is_refused(value: float) -> None:
    with pytest.raises(RowFailed, match="no vector of finite length"):
        pooled(torch.full((2, 4), value))
