"""Vectors of hidden states: the same bits however they came in, and of length 1."""

import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch

from penstock.core.vectors import POOLINGS, Centre, Dense, DenseActivation, Normalize, Pooling
from penstock.core.vectors import pooled as pooled_of
from penstock.runtime.pool import LENGTH_ONE, Pool, StepWeights, VectorMaker


def pool_of(states: torch.Tensor, *cuts: int) -> Pool:
    """What is pooled of the mean of `states`, which come in parts."""
    pool = Pool("mean", 0, len(states))
    for first, end in zip((0, *cuts), (*cuts, len(states)), strict=True):
        pool.add(states[first:end].float().numpy())
    assert pool.is_complete
    return pool


def pooled(states: torch.Tensor, *cuts: int) -> np.ndarray:
    """The vector of the mean of `states`."""
    (vector,) = LENGTH_ONE([pool_of(states, *cuts)])
    assert vector is not None
    return np.frombuffer(vector, np.float32)


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
    right = torch.eye(2, 4)
    first, broken, last = LENGTH_ONE([pool_of(right), pool_of(torch.full((2, 4), value)), pool_of(right)])
    assert broken is None
    # Those beside it are what they are without it.
    assert first == last == pooled(right).tobytes()


POOLED: dict[Pooling, Callable[[np.ndarray], np.ndarray]] = {
    "last": lambda rows: rows[-1],
    "cls": lambda rows: rows[0],
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.max(0),
    "mean_sqrt_len": lambda rows: rows.sum(0) / math.sqrt(len(rows)),
    "tokens": lambda rows: rows,
    "weightedmean": lambda rows: (np.arange(1, len(rows) + 1)[:, None] * rows).sum(0) / sum(range(1, len(rows) + 1)),
}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("cut", [None, 5])
def test_poolings(pooling: Pooling, cut: int | None) -> None:
    states = torch.randn(17, 12, generator=torch.Generator().manual_seed(3))
    first, end = pooled_of(pooling, 0, len(states))
    pool, wanted = Pool(pooling, first, end), states[first:end]
    for part in (wanted,) if cut is None or len(wanted) < cut else (wanted[:cut], wanted[cut:]):
        assert not pool.is_complete
        pool.add(part.numpy())
    assert pool.is_complete
    right = np.atleast_2d(POOLED[pooling](states.double().numpy()))
    np.testing.assert_allclose(pool.pooled(), right, rtol=1e-12)


def test_a_step_without_states_changes_nothing() -> None:
    pool = Pool("max", 0, 2)
    pool.add(np.empty((0, 4), np.float32))
    pool.add(np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32))
    np.testing.assert_array_equal(pool.pooled(), [[4.0, 3.0, 3.0, 4.0]])


def test_what_float32_cannot_hold_is_refused() -> None:
    dense = Dense("folder", 2, 1, biased=False)
    make = VectorMaker((dense,), {dense: (np.full((1, 2), 10, np.float32), None)})
    assert make([pool_of(torch.full((1, 2), 1e38)), pool_of(torch.ones(1, 2))]) == [None, np.float32(20).tobytes()]


def test_a_vector_is_the_same_beside_others() -> None:
    generator = torch.Generator().manual_seed(7)
    dense, centre = Dense("folder", 33, 17), Centre("norm", 17, 1e-5)
    weights: StepWeights = {
        dense: (torch.randn(17, 33, generator=generator).numpy(), torch.randn(17, generator=generator).numpy()),
        centre: (torch.randn(17, generator=generator).numpy(), torch.randn(17, generator=generator).numpy()),
    }
    texts = [torch.randn(length, 33, generator=generator) for length in (1, 5, 64, 3)]
    for make in (LENGTH_ONE, VectorMaker((dense, centre, Normalize()), weights)):
        alone = [make([pool_of(text)])[0] for text in texts]
        assert make([pool_of(text) for text in texts]) == alone
        tokens = Pool("tokens", 0, 5)
        tokens.add(texts[1].numpy())
        (each,) = make([tokens])
        rows = [make([pool_of(row[None])])[0] for row in texts[1]]
        assert make([tokens, pool_of(texts[2])]) == [each, alone[2]]
        assert each == b"".join(row for row in rows if row is not None)


def test_tokens_of_a_prompt_do_not_count() -> None:
    states = torch.randn(9, 4, generator=torch.Generator().manual_seed(4))
    for pooling, right in (("mean", states[3:].double().mean(0)), ("max", states[3:].double().amax(0))):
        first, end = pooled_of(pooling, 3, len(states))  # type: ignore[arg-type]
        pool = Pool(pooling, first, end)  # type: ignore[arg-type]
        pool.add(states[first:end].numpy())
        np.testing.assert_allclose(pool.pooled(), right.numpy()[None], rtol=1e-12)
    assert pooled_of("cls", 3, 9) == (0, 1) and pooled_of("last", 3, 9) == (8, 9)


@pytest.mark.parametrize("activation", get_args(DenseActivation))
@pytest.mark.parametrize("biased", [False, True])
def test_dense_layers_follow(activation: DenseActivation, biased: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    states, weight = torch.randn(6, 8, generator=generator), torch.randn(5, 8, generator=generator)
    bias = torch.randn(5, generator=generator) if biased else None
    dense = Dense("folder", 8, 5, activation, biased)
    make = VectorMaker((dense, Normalize()), {dense: (weight.numpy(), None if bias is None else bias.numpy())})
    (vector,) = make([pool_of(states)])
    assert vector is not None
    made = torch.nn.functional.linear(states.mean(0), weight, bias)
    activate = {"identity": lambda x: x, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}
    right = activate.get(activation, getattr(torch, activation, None))(made)  # type: ignore[misc]
    right = right / right.norm()
    np.testing.assert_allclose(np.frombuffer(vector, np.float32), right.numpy(), rtol=1e-4, atol=1e-6)
