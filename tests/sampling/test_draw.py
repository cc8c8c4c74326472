import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.sampling.draw import TokenDraw, float_below, perturbed
from penstock.sampling.noise import Purpose, position_key
from support.sampling_rows import chi_square


def unpruned(logits, temperature, ids, key):
    """The definition: the largest of all perturbed values, the lowest id among equals."""
    values = perturbed(logits, float(logits.max()), temperature, ids, key)
    return int(ids[np.flatnonzero(values == values.max())].min())


TEMPERATURES = st.one_of(st.sampled_from([5e-324, 1e-300, 1e-12, 0.01, 0.7, 1.0, 1.5, 100.0]), st.floats(1e-3, 100))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("size", [1, 7, 300, 32768, 32769, 70_000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 1e6])
@pytest.mark.parametrize("temperature", [1e-40, 0.3, 1.0, 3.0, 100.0])
def test_pruning_changes_nothing(size, spread, temperature):
    generator = np.random.default_rng(size)
    draw = TokenDraw(size)
    for position in range(6):
        logits = (generator.standard_normal(size) * spread).astype(np.float32)
        logits[generator.integers(size, size=size // 5)] = -np.inf
        logits[generator.integers(size)] = 1.0
        key = position_key(11, 0, Purpose.TOKEN, position)
        peak = float(logits.max())
        assert draw.draw(logits, peak, temperature, None, key) == unpruned(logits, temperature, np.arange(size), key)
        kept = np.flatnonzero((generator.random(size) < 0.7) | (logits == logits.max()))
        assert draw.draw(logits, peak, temperature, kept, key) == unpruned(logits, temperature, kept, key)


def test_many_unlikely_tokens_have_their_chance() -> None:
    # Each is 14 below the peak, and all together are drawn one time in 25.
    logits = np.full(50_000, -14.0, np.float32)
    logits[7] = 0.0
    draw, every = TokenDraw(logits.size), np.arange(logits.size)
    keys = [position_key(5, 0, Purpose.TOKEN, position) for position in range(100)]
    chosen = [draw.draw(logits, 0.0, 1.0, None, key) for key in keys]
    assert chosen == [unpruned(logits, 1.0, every, key) for key in keys]
    assert len(set(chosen)) > 1


@given(
    hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)),
    TEMPERATURES,
    st.integers(0, 2**64 - 1),
)
def test_pruning_changes_nothing_whatever_the_logits(logits, temperature, seed):
    key = position_key(seed, 0, Purpose.TOKEN, 0)
    chosen = TokenDraw(logits.size).draw(logits, float(logits.max()), temperature, None, key)
    assert chosen == unpruned(logits, temperature, np.arange(logits.size), key)


@given(hnp.arrays(np.float32, st.integers(200, 600), elements=st.floats(-30, 30, width=32)), TEMPERATURES)
def test_a_short_list_of_survivors_is_drawn_as_a_long_one(logits, temperature):
    draw, key, peak = TokenDraw(logits.size), position_key(3, 0, Purpose.TOKEN, 9), float(logits.max())
    for count in (1, 2, 12, 13, 192, 193):
        ids = np.sort(np.argsort(-logits, kind="stable")[:count])
        assert draw.draw(logits, peak, temperature, ids, key) == unpruned(logits, temperature, ids, key)


@pytest.mark.parametrize("value", [-np.inf, -1e300, -3.4028234663852886e38, -3.4e38, -1.0, 0.0, 1e-46, 1.0, 3.4e38])
def test_float_below_is_below(value):
    found = float_below(value)
    assert found.dtype == np.float32
    assert float(found) < value or found == -np.inf
    if value > -3.4e38:
        assert np.isfinite(found)


def test_a_leader_by_its_bound_may_be_far_behind_at_a_tiny_temperature():
    logits = np.full(300, -2e-30, np.float32)
    logits[7] = 0.0
    for position in range(200):
        key = position_key(0, 0, Purpose.TOKEN, position)
        assert TokenDraw(300).draw(logits, 0.0, 5e-324, None, key) == 7
        assert TokenDraw(300).draw(logits, 0.0, 5e-324, np.arange(300), key) == 7


@pytest.mark.parametrize("draws", [15_000, pytest.param(60_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature, draws):
    logits = np.array([0.3, -1.2, 2.0, 0.0, -4.0, 1.1, -0.5, 0.9], np.float32)
    draw, counts = TokenDraw(8), [0] * 8
    for position in range(draws):
        counts[draw.draw(logits, 2.0, temperature, None, position_key(17, 0, Purpose.TOKEN, position))] += 1
    weights = np.exp(logits.astype(float) / temperature)
    assert abs(chi_square(counts, weights / weights.sum())) < 5


@pytest.mark.parametrize("draws", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_frequencies_follow_the_softmax_over_a_wide_vocabulary(draws):
    logits = np.log(np.tile(np.arange(1.0, 11.0), 200)).astype(np.float32)
    draw, counts = TokenDraw(2000), [0] * 10
    for seed in range(draws):
        counts[draw.draw(logits, float(logits.max()), 1.0, None, position_key(seed, 0, Purpose.TOKEN, 0)) % 10] += 1
    assert abs(chi_square(counts, np.arange(1, 11) / 55)) < 5
