"""Random numbers as a pure function of (seed, sample index, purpose, output position, token id).

Two stages. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), keyed by the seed and
counting (position, sample index, purpose), makes three 32-bit words for one position. A keyed permutation of the 32-bit
integers then gives each token id (lane) its own word: two multiply-xorshift rounds with the constants of C. Wellons'
hash-prospector (low-bias pair 21f0aaad, 735a2d97), the three words being added or xored in before, between and after
them. The second stage needs only 32-bit integer operations, so that a whole vocabulary costs microseconds.

A word w stands for the uniform number u = 1 - (w + 1/2) / 2^32, exact in float64 and strictly inside (0, 1), and for
the Gumbel noise -log(-log u), with the logarithm below, whose every operation is specified. The stream is part of what
users rely on (a seed reproduces a text), so nothing here may change its values.
"""

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Doubles = NDArray[np.float64]

_MASK32 = 0xFFFFFFFF
_LANE_FACTOR = 0x9E3779B9
_FACTOR_1 = 0x21F0AAAD
_FACTOR_2 = 0x735A2D97

# log 2 in two parts: the first has 32 trailing zero bits, so that its product with any exponent is exact.
LN2_HIGH = float.fromhex("0x1.62e42feep-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
# atanh(s) = s + s^3/3 + s^5/5 + ...; with |s| <= 0.1716 the first term left out is below 2^-56 of the sum.
_ATANH = tuple(1.0 / (2 * k + 1) for k in range(11))


class Purpose(IntEnum):
    """What a random number is used for; each has a stream of its own."""

    TOKEN = 0
    ACCEPTANCE = 1
    RESIDUAL = 2
    DRAFT = 3


class PositionKey(NamedTuple):
    """The three words that key the permutation of token ids at one output position."""

    first: int
    second: int
    third: int


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32 with 10 rounds: four 32-bit words from a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product_0 = 0xD2511F53 * c0
        product_1 = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK32,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK32,
        )
        k0 = (k0 + 0x9E3779B9) & _MASK32
        k1 = (k1 + 0xBB67AE85) & _MASK32
    return c0, c1, c2, c3


def position_key(seed: int, sample_index: int, purpose: Purpose, position: int) -> PositionKey:
    """The key of one output position (0 for the first token); `seed` counts modulo 2^64."""
    words = philox4x32((position, sample_index, int(purpose), 0), (seed & _MASK32, (seed >> 32) & _MASK32))
    return PositionKey(words[0], words[1], words[2])


def lanes(ids: NDArray[np.integer]) -> Words:
    """Token ids as the permutation takes them: multiplied by an odd constant, modulo 2^32."""
    return np.multiply(ids.astype(np.uint32), _LANE_FACTOR)


def fill_words(key: PositionKey, lane: Words, out: Words, scratch: Words) -> None:
    """Write each lane's random word to `out`; all arrays are uint32 of one shape, `scratch` is overwritten."""
    np.add(lane, key.first, out=out)
    np.right_shift(out, 16, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _FACTOR_1, out=out)
    np.bitwise_xor(out, key.second, out=out)
    np.right_shift(out, 15, out=scratch)
    np.bitwise_xor(out, scratch, out=out)
    np.multiply(out, _FACTOR_2, out=out)
    np.add(out, key.third, out=out)
    np.right_shift(out, 15, out=scratch)
    np.bitwise_xor(out, scratch, out=out)


def random_words(key: PositionKey, ids: NDArray[np.integer]) -> Words:
    """The random words of the token ids, uint32, in their order."""
    lane = lanes(ids)
    out = np.empty_like(lane)
    fill_words(key, lane, out, np.empty_like(lane))
    return out


def random_word(key: PositionKey, token: int) -> int:
    """The random word of one token id: `random_words` for a single one, without the cost of arrays."""
    word = (token * _LANE_FACTOR + key.first) & _MASK32
    word = ((word ^ (word >> 16)) * _FACTOR_1 & _MASK32) ^ key.second
    word = ((word ^ (word >> 15)) * _FACTOR_2 + key.third) & _MASK32
    return word ^ (word >> 15)


def uniforms(words: Words) -> Doubles:
    """Numbers strictly between 0 and 1, exactly 1 - (word + 1/2) / 2^32."""
    result: Doubles = 1.0 - (words.astype(np.float64) + 0.5) * 2.0**-32
    return result


def log(x: Doubles) -> Doubles:
    """Natural logarithm of positive normal float64 numbers, each step a single IEEE 754 operation in a fixed order.

    x = m · 2^e with m in [√½, √2); s = (m - 1) / (m + 1); log x = e · log 2 + 2 · atanh(s), by the odd series up to
    s^21, Horner from the highest power down, without fused operations. Its error is below 2 units in the last place.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    power = (exponent - small).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = np.full_like(s, _ATANH[-1])
    for coefficient in _ATANH[-2:0:-1]:
        series = series * z + coefficient
    double = s + s
    # The large terms come last, so that the small ones are not rounded away one by one.
    result: Doubles = power * LN2_HIGH + (double + (double * (z * series) + power * LN2_LOW))
    return result


def gumbel(words: Words) -> Doubles:
    """Standard Gumbel noise of random words, between -3.1 and 22.9."""
    return -log(-log(uniforms(words)))


def log_one(x: float) -> float:
    """`log` of one number: the same operations on Python's floats, which give the same bits."""
    mantissa, exponent = math.frexp(x)
    if mantissa < SQRT_HALF:
        mantissa *= 2.0
        exponent -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = _ATANH[-1]
    for coefficient in _ATANH[-2:0:-1]:
        series = series * z + coefficient
    double = s + s
    return exponent * LN2_HIGH + (double + (double * (z * series) + exponent * LN2_LOW))


def gumbel_one(word: int) -> float:
    """`gumbel` of one word, with the same bits."""
    return -log_one(-log_one(1.0 - (word + 0.5) * 2.0**-32))
