import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling.noise import (
    Purpose,
    gumbel,
    gumbel_one,
    log,
    log_one,
    philox4x32,
    position_key,
    random_word,
    random_words,
    uniforms,
)
from support.sampling_rows import chi_square

GOLDEN_KEY = (2961442463, 676909893, 1973866483)
GOLDEN_WORDS = [3005719260, 788486389, 3144416773, 506149013, 3265122420]
GOLDEN_GUMBEL = [
    "-0x1.7b29c4dd69e84p-3",
    "0x1.986af7517f8fap+0",
    "-0x1.1a1f843df8df1p-2",
    "0x1.09c51fac32f88p+1",
    "-0x1.6cd9e1bd52c1bp-2",
]
KEYS = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 127), st.sampled_from(Purpose), st.integers(0, 2**20))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_equals_the_published_vectors(counter, key, expected):
    assert philox4x32(counter, key) == expected


def test_the_stream_never_changes():
    """Seeds must reproduce the same text in every later version, so these values are part of the interface."""
    key = position_key(1234567890123456789, 3, Purpose.TOKEN, 42)
    assert key == GOLDEN_KEY
    assert random_words(key, np.array([0, 1, 2, 31999, 151935])).tolist() == GOLDEN_WORDS
    assert [value.hex() for value in gumbel(np.array(GOLDEN_WORDS, np.uint32)).tolist()] == GOLDEN_GUMBEL
    assert position_key(-1, 0, Purpose.TOKEN, 0) == position_key(2**64 - 1, 0, Purpose.TOKEN, 0)


def test_every_part_of_the_key_gives_another_stream():
    base = (7, 0, Purpose.TOKEN, 0)
    others = [(8, 0, Purpose.TOKEN, 0), (7, 1, Purpose.TOKEN, 0), (7, 0, Purpose.TOKEN, 1)]
    others += [(7, 0, purpose, 0) for purpose in Purpose if purpose is not Purpose.TOKEN]
    others += [(7 + 2**32, 0, Purpose.TOKEN, 0)]
    keys = {position_key(*parts) for parts in [base, *others]}
    assert len(keys) == len(others) + 1


@given(KEYS, st.lists(st.integers(0, 2**18), min_size=1, max_size=20))
def test_scalar_and_array_forms_give_the_same_bits(parts, ids):
    key = position_key(*parts)
    words = random_words(key, np.array(ids))
    assert [random_word(key, token) for token in ids] == words.tolist()
    assert [gumbel_one(word) for word in words.tolist()] == gumbel(words).tolist()


@given(KEYS)
def test_a_position_gives_every_token_another_word(parts):
    words = random_words(position_key(*parts), np.arange(50_000))
    assert np.unique(words).size == words.size


def test_uniforms_are_strictly_inside_zero_and_one():
    ends = uniforms(np.array([0, 2**32 - 1], np.uint32))
    assert 0.0 < ends[1] < ends[0] < 1.0
    noise = gumbel(np.array([0, 2**32 - 1], np.uint32))
    assert -3.14 < noise[1] < noise[0] < 22.88


def test_log_is_accurate_and_monotone():
    generator = np.random.default_rng(0)
    spread = np.exp(generator.uniform(-700, 700, 20_000))
    near_one = 1.0 - generator.uniform(0, 1e-3, 20_000) ** 3
    edges = np.array([math.sqrt(0.5), 1.0, math.sqrt(2.0), 2.0**-33, 1 - 2.0**-33, 0.5, 2.0])
    neighbours = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 9)])
    for numbers in (spread, near_one, neighbours):
        reference = np.log(numbers)
        assert np.all(np.abs(log(numbers) - reference) <= 3 * np.spacing(np.abs(reference)))
        assert np.all(np.diff(log(np.sort(numbers))) >= 0)
        assert [log_one(number) for number in numbers.tolist()] == log(numbers).tolist()
    words = np.arange(0, 2**32, 2**32 // 100_003, dtype=np.uint64).astype(np.uint32)
    assert np.all(np.diff(gumbel(words)) < 0)


def test_words_are_uniform_over_positions_and_over_tokens():
    ids = np.arange(64)
    words = np.array([random_words(position_key(5, 0, Purpose.TOKEN, position), ids) for position in range(4000)])
    for shift in (0, 8, 16, 24, 28):
        bins = (words >> np.uint32(shift)).astype(np.int64) & 15
        assert abs(chi_square(np.bincount(bins.ravel(), minlength=16), [1 / 16] * 16)) < 5
        # The same token at successive positions, and neighbouring tokens at the same position.
        for pairs in (bins[:-1] * 16 + bins[1:], bins[:, :-1] * 16 + bins[:, 1:]):
            assert abs(chi_square(np.bincount(pairs.ravel(), minlength=256), [1 / 256] * 256)) < 5


def test_successive_seeds_and_samples_are_independent():
    ids = np.arange(32)
    by_seed = np.array([random_words(position_key(seed, 0, Purpose.TOKEN, 0), ids) for seed in range(4000)])
    by_sample = np.array([random_words(position_key(1, index, Purpose.TOKEN, 0), ids) for index in range(4000)])
    for words in (by_seed, by_sample):
        bins = (words >> np.uint32(28)).astype(np.int64)
        pairs = bins[:-1] * 16 + bins[1:]
        assert abs(chi_square(np.bincount(pairs.ravel(), minlength=256), [1 / 256] * 256)) < 5
