"""The exponential that top-p's probabilities are made of, the same bits on every machine."""

import math

import numpy as np

from penstock.sampling.noise import LN2_HIGH, LN2_LOW, Doubles

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
# The first term left out of the series is below 2^-57 of the sum.
_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(n) for n in range(2, 14))
_LEAST = -700.0


def exp(x: Doubles) -> Doubles:
    """e^x of float64 numbers that are not positive, each step a single IEEE 754 operation in a fixed order.

    x = k · log 2 + r with |r| <= log(2) / 2; e^r by its series up to r^13, Horner from the highest power down, without
    fused operations. 0 below -700. Its error is below 2 units in the last place, and e^0 is 1.
    """
    least = np.maximum(x, _LEAST)
    power = np.rint(least * _LOG2_E)
    rest = (least - power * LN2_HIGH) - power * LN2_LOW
    series = np.full_like(rest, _INVERSE_FACTORIALS[-1])
    for coefficient in _INVERSE_FACTORIALS[-2::-1]:
        series = series * rest + coefficient
    # The large terms come last, so that the small ones are not rounded away one by one.
    result: Doubles = np.ldexp(1.0 + (rest + rest * rest * series), power.astype(np.int32))
    return np.where(x < _LEAST, 0.0, result)
