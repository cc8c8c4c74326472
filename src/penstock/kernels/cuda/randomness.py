"""Numbers in their order, and the random numbers of `sampling/noise.py`, as kernels that choose tokens need them."""

import triton
import triton.language as tl

# exp(x) below this cannot change a sum that is at least 1.
NO_WEIGHT = tl.constexpr(-37.0)
LEAST = tl.constexpr(-(2**31))


@triton.jit
def ordered(x):
    """int32 in the order of float32 numbers; both zeros are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def random_words(token, words):
    """The random word of each token id at the output position whose key, int64 [3], is at `words`."""
    first, second = tl.load(words).to(tl.uint32), tl.load(words + 1).to(tl.uint32)
    third = tl.load(words + 2).to(tl.uint32)
    word = token.to(tl.uint32) * tl.full([], 0x9E3779B9, tl.uint32) + first
    word = (word ^ (word >> 16)) * tl.full([], 0x21F0AAAD, tl.uint32)
    word = word ^ second
    word = (word ^ (word >> 15)) * tl.full([], 0x735A2D97, tl.uint32) + third
    return word ^ (word >> 15)


@triton.jit
def noise(word):
    """Standard Gumbel noise of each random word, in float64."""
    uniform = 1.0 - (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32
    return -tl.log(-tl.log(uniform))


@triton.jit
def rough_noise(word):
    """The same in float32, within 1e-4."""
    near_zero = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # By the complement, so that the logarithm's argument is exact where it is small.
    rest = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = near_zero * (1.0 + near_zero * (0.5 + near_zero * (0.33333334 + near_zero * 0.25)))
    return -tl.log(tl.where(near_zero < 0.01, series, -tl.log(rest)))
