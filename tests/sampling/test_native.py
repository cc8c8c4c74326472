"""The native kernels choose the same tokens as the reference, whatever the logits, the rows beside and the threads."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.sampling.choice import Choice
from penstock.sampling.reference import Reference

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

SIZES = st.one_of(st.integers(1, 300), st.sampled_from([127, 128, 129, 16_384, 16_385, 32_000, 150_001]))
TEMPERATURES = st.one_of(st.sampled_from([0.0, 5e-324, 1e-40, 1e-12, 0.01, 0.7, 1.0, 1.5, 100.0]), st.floats(1e-3, 100))
INFINITY = float("inf")


@st.composite
def rows_of_logits(draw):
    """A row of float32 logits: random, tied, masked, extreme, all equal."""
    size, seed = draw(SIZES), draw(st.integers(0, 2**32))
    generator = np.random.default_rng(seed)
    spread = draw(st.sampled_from([0.0, 1e-3, 1.0, 4.0, 30.0, 1e6, 1e30]))
    logits = (generator.standard_normal(size) * spread).astype(np.float32)
    if draw(st.booleans()):
        # As bfloat16 leaves them: many are equal.
        logits = (logits.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if draw(st.booleans()):
        logits[generator.random(size) < draw(st.sampled_from([0.01, 0.5, 0.999]))] = -np.inf
    for value in draw(st.lists(st.sampled_from([3e38, -3e38, 0.0, -0.0, 1e-45, 5.0]), max_size=3)):
        logits[generator.integers(size)] = value
    return logits


def masks_for(size, count=2, allowed=0.3):
    """Random masks of so many tokens; always the same."""
    bits = np.random.default_rng(size).random((count, -(-size // 32) * 32)) < allowed
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


def choose(logits, asked, masks=None):
    """The native kernels' answer, by default with masks of a third of all tokens."""
    return native.choose(logits, asked, masks_for(logits.shape[1]) if masks is None else masks)


def reference(logits, asked, masks=None):
    size = logits.shape[1]
    return Reference(size).choose(logits, asked, masks_for(size) if masks is None else masks)


@st.composite
def choices(draw):
    """What is asked for one token, of row 0."""
    return Choice(
        row=0,
        mask=draw(st.sampled_from([-1, -1, 0, 1])),
        position=draw(st.integers(0, 2**31)),
        temperature=draw(TEMPERATURES),
        top_k=draw(st.one_of(st.just(0), st.integers(1, 60), st.sampled_from([200, 5000, 200_000]))),
        top_p=draw(st.one_of(st.just(1.0), st.sampled_from([1e-9, 0.5, 0.9, 0.99999]), st.floats(0.01, 0.999))),
        log_min_p=draw(st.one_of(st.just(-INFINITY), st.sampled_from([-708.0, -3.0, 0.0]), st.floats(-20.0, 0.0))),
        logprobs=draw(st.sampled_from([-1, -1, 0, 1, 5, 20])),
        seed=draw(st.integers(0, 2**64 - 1)),
        sample_index=draw(st.integers(0, 127)),
        purpose=draw(st.integers(0, 3)),
    )


def check(found, expected):
    """Tokens are the same, the peak too or both NaN; log probabilities are as close as float32 exponentials allow."""
    token, peak, logprob, top_tokens, top_logprobs = found
    assert token == expected.token
    assert peak == expected.peak or math.isnan(peak) and math.isnan(expected.peak)
    assert top_tokens == expected.top_tokens
    # What is taken away from is exact to float64, in which the sum's error is lost at 1e30.
    assert logprob == pytest.approx(expected.logprob, rel=1e-15, abs=1e-6)
    assert top_logprobs == pytest.approx(expected.top_logprobs, rel=1e-15, abs=1e-6)


@settings(max_examples=200)
@given(rows_of_logits(), st.lists(choices(), min_size=1, max_size=5))
def test_every_choice_is_the_references(logits, asked):
    expected = reference(logits[None], asked)
    for found, right in zip(choose(logits[None], asked), expected, strict=True):
        check(found, right)


@given(
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(width=32)),
    st.lists(choices(), min_size=1, max_size=3),
)
def test_broken_rows_are_the_references(logits, asked):
    expected = reference(logits[None], asked)
    for found, right in zip(choose(logits[None], asked), expected, strict=True):
        check(found, right)


@pytest.mark.parametrize("size", [1, 128, 40_000])
@pytest.mark.parametrize("broken", [math.nan, -math.nan, INFINITY])
def test_a_broken_logit_is_seen_wherever_it_is(size, broken):
    greedy = Choice(0, -1, 0, 0.0, 0, 1.0, -INFINITY, -1, 0, 0, 0)
    for place in {0, size // 2, size - 1}:
        logits = np.zeros((1, size), np.float32)
        logits[0, place] = broken
        ((token, peak, *_),) = choose(logits, [greedy])
        assert token == place
        assert peak == broken or math.isnan(peak) and math.isnan(broken)


@settings(max_examples=60)
@given(
    st.sampled_from([700, 20_000]),
    st.integers(0, 2**32),
    st.sampled_from([0.5, 3.0, 9.0]),
    st.floats(0.001, 0.999),
    st.floats(0.2, 2.0),
)
def test_top_p_near_its_edge(size, seed, spread, top_p, temperature):
    """Many draws of each row, so that some fall on the token where the sum reaches p, among equals too."""
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)[None]
    logits = np.round(logits * 4) / 4 if seed % 2 else logits
    asked = [Choice(0, -1, position, temperature, 0, top_p, -INFINITY, -1, seed, 0, 0) for position in range(40)]
    expected = reference(logits, asked)
    assert [found[0] for found in choose(logits, asked)] == [right.token for right in expected]


@given(st.integers(2, 40), st.integers(1, 39), st.integers(0, 2**32))
def test_where_the_sum_is_p_to_the_last_bit(size, kept, seed):
    """Equal logits, of which p keeps exactly so many: float32 sums can't tell, and the exact ones must be asked."""
    logits = np.full((1, size), 3.5, np.float32)
    top_p = min(kept, size) / size
    asked = [Choice(0, -1, position, 0.8, 0, top_p, -INFINITY, -1, seed, 0, 0) for position in range(40)]
    tokens = [found[0] for found in choose(logits, asked)]
    assert tokens == [right.token for right in reference(logits, asked)]
    assert max(tokens) < math.ceil(size * top_p)


def test_rows_and_threads_change_no_bit():
    generator = np.random.default_rng(3)
    logits = (generator.standard_normal((9, 50_003)) * 3).astype(np.float32)
    kinds = [(0.0, 0, 1.0, -INFINITY), (0.7, 0, 0.9, -INFINITY), (1.0, 50, 0.8, -2.0), (1.3, 0, 1.0, -3.0)]
    asked = [Choice(row, row % 3 - 1, 4, *kinds[row % len(kinds)], 5 * (row % 3) - 1, row, 0, 0) for row in range(9)]
    before = native.threads()
    try:
        native.set_threads(1)
        expected = choose(logits, asked)
        for threads in (1, 2, 3):
            native.set_threads(threads)
            assert choose(logits, asked) == expected
            assert choose(logits, asked[::-1]) == expected[::-1]
            for count in (1, 2, 4):
                assert choose(logits, asked[:count]) == expected[:count]
            for choice, alone in zip(asked, expected, strict=True):
                assert choose(logits[choice.row][None].copy(), [choice._replace(row=0)]) == [alone]
    finally:
        native.set_threads(before)


@pytest.mark.parametrize(
    "change",
    [
        {"row": 2},
        {"row": -1},
        {"mask": 2},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
    ]
    + [{"top_p": 1.5}, {"log_min_p": 0.5}, {"log_min_p": math.nan}],
)
def test_what_makes_no_sense_is_refused(change):
    choice = Choice(0, -1, 0, 1.0, 0, 1.0, -INFINITY, -1, 0, 0, 0)
    with pytest.raises(ValueError, match="must|no such"):
        choose(np.zeros((2, 5), np.float32), [choice._replace(**change)])
    with pytest.raises(ValueError, match="vocabulary"):
        choose(np.zeros((2, 0), np.float32), [choice])
    with pytest.raises(ValueError, match="a bit for each token"):
        choose(np.zeros((2, 33), np.float32), [choice], masks_for(32))


def test_no_choices_give_none():
    assert choose(np.zeros((2, 5), np.float32), []) == []


@pytest.mark.parametrize("size", [1, 31, 33, 128, 16_385])
def test_only_what_a_mask_allows_is_chosen(size):
    logits = np.zeros((1, size), np.float32)
    for place in {0, size // 2, size - 1}:
        masks = np.zeros((1, -(-size // 32)), np.uint32)
        masks[0, place // 32] = 1 << place % 32
        for temperature in (0.0, 1.0):
            asked = [Choice(0, 0, 3, temperature, 0, 1.0, -INFINITY, 5, 0, 0, 0)]
            assert choose(logits, asked, masks) == [(place, 0.0, 0.0, [place], [0.0])]
    ((_, peak, *_),) = choose(logits, asked, np.zeros_like(masks))
    assert peak == -INFINITY
