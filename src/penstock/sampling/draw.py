"""Gumbel-max: the token with the largest logit / T + noise, without computing a logarithm for every token.

The noise of a word w is at most -ln((w + 1/2) / 2^32), since -ln(1 - x) >= x, and the base-2 logarithm of a float32 is
at least what its bits say when read as a fixed-point number (the logarithm is concave between powers of two). That
bound costs a few integer and float32 operations a token and is at most 0.06 above the true value where it matters, so
only a handful of tokens can reach the exact value of the token with the best bound. Those are compared exactly.
"""

import math

import numpy as np
from numpy.typing import NDArray

from penstock.sampling.noise import (
    Doubles,
    PositionKey,
    Words,
    fill_words,
    gumbel,
    gumbel_one,
    lanes,
    random_word,
    random_words,
)

# Best token's noise is at least -3.14 and another's at most 22.88, so one further behind than their sum never wins.
_REACH = 26.5
_LOWEST = float(np.finfo(np.float32).min)
# Above all rounding of the float32 bound: its terms stay below 160, with 2^-23 relative error in each of six steps.
_SLACK = 1e-3
# Up to this many tokens the arrays' fixed costs exceed those of computing every token exactly.
_FEW = 192
_FEW_SCALARS = 12
_CHUNK = 32768
_NEGATIVE_LN2_STEP = np.float32(-0.6931471805599453 * 2.0**-23)
_LN2_TIMES_159 = np.float32(0.6931471805599453 * 159)
# The bound divides in float32; a smaller temperature would overflow there, and the bound holds with a larger one.
_LEAST_BOUND_TEMPERATURE = 1e-30


def scaled(logits: NDArray[np.float32], peak: float, temperature: float) -> Doubles:
    """(logit - peak) / temperature in float64, where `peak` is the row's largest logit: 0 for it, negative below.

    Subtracting first keeps it free of overflow to NaN at any temperature above 0.
    """
    with np.errstate(over="ignore"):
        result: Doubles = (logits.astype(np.float64) - peak) / temperature
    return result


def float_below(value: float) -> np.float32:
    """A float32 just below `value`; minus infinity where it is no larger than the lowest finite one."""
    if value <= _LOWEST:
        return np.float32(-np.inf)
    result: np.float32 = np.nextafter(np.float32(value), np.float32(-np.inf))
    return result


class TokenDraw:
    """Draws tokens from rows of up to `vocab_size` logits, in buffers of its own; not for concurrent use."""

    def __init__(self, vocab_size: int) -> None:
        chunk = min(vocab_size, _CHUNK)
        self._lanes = lanes(np.arange(vocab_size))
        self._words = np.empty(chunk, np.uint32)
        self._scratch = np.empty(chunk, np.uint32)
        self._noise = np.empty(chunk, np.float32)
        self._bounds = np.empty(vocab_size, np.float32)

    def draw(
        self,
        logits: NDArray[np.float32],
        peak: float,
        temperature: float,
        ids: NDArray[np.int64] | None,
        key: PositionKey,
    ) -> int:
        """The chosen token id; ties go to the lower id.

        `logits` is the whole row [V], contiguous, with `peak` its largest value (finite) and temperature > 0; `ids`
        are the survivors, ascending and holding the token of the peak, None for all tokens.
        """
        if ids is None:
            within = logits > float_below(peak - _REACH * temperature)
            if np.count_nonzero(within) <= logits.size // 4:
                ids = within.nonzero()[0]
        if ids is None:
            ids = self._contenders(logits, peak, temperature, None, key)
        elif ids.size > _FEW:
            ids = self._contenders(logits[ids], peak, temperature, ids, key)
        if ids.size <= _FEW_SCALARS:
            return _best_of_few(logits, peak, temperature, ids, key)
        values = perturbed(logits, peak, temperature, ids, key)
        return int(ids[values.argmax()])

    def _contenders(
        self,
        logits: NDArray[np.float32],
        peak: float,
        temperature: float,
        ids: NDArray[np.int64] | None,
        key: PositionKey,
    ) -> NDArray[np.int64]:
        """All ids that can have the largest perturbed value; `logits` are those of `ids`, None for all tokens."""
        bounds = self._bounds[: logits.size]
        lane = self._lanes[: logits.size] if ids is None else self._lanes[ids]
        with np.errstate(over="ignore"):
            self._fill_bounds(logits, peak, temperature, lane, key, bounds)
        leader = int(bounds.argmax())
        token = leader if ids is None else int(ids[leader])
        exact = (float(logits[leader]) - peak) / temperature + gumbel_one(random_word(key, token))
        contenders = (bounds > float_below(exact - _SLACK)).nonzero()[0]
        return contenders if ids is None else ids[contenders]

    def _fill_bounds(
        self,
        logits: NDArray[np.float32],
        peak: float,
        temperature: float,
        lane: Words,
        key: PositionKey,
        bounds: NDArray[np.float32],
    ) -> None:
        """Write an upper bound of each perturbed value, up to `_SLACK`, chunk by chunk so that buffers stay cached."""
        inverse = np.float32(1.0 / max(temperature, _LEAST_BOUND_TEMPERATURE))
        top = np.float32(peak)
        for first in range(0, logits.size, self._words.size):
            part = slice(first, min(first + self._words.size, logits.size))
            count = part.stop - first
            words, noise, bound = self._words[:count], self._noise[:count], bounds[part]
            fill_words(key, lane[part], words, self._scratch[:count])
            np.copyto(bound, words, casting="unsafe")
            np.copyto(noise, bound.view(np.int32), casting="unsafe")
            np.multiply(noise, _NEGATIVE_LN2_STEP, out=noise)
            np.add(noise, _LN2_TIMES_159, out=noise)
            np.subtract(logits[part], top, out=bound)
            np.multiply(bound, inverse, out=bound)
            np.add(bound, noise, out=bound)


def perturbed(
    logits: NDArray[np.float32], peak: float, temperature: float, ids: NDArray[np.int64], key: PositionKey
) -> Doubles:
    """The exact values that are compared, float64, one for each of `ids`: (logit - peak) / T + Gumbel noise."""
    result: Doubles = scaled(logits[ids], peak, temperature) + gumbel(random_words(key, ids))
    return result


def _best_of_few(
    logits: NDArray[np.float32], peak: float, temperature: float, ids: NDArray[np.int64], key: PositionKey
) -> int:
    """The first of `ids` with the largest `perturbed` value, computed one by one with the same bits."""
    chosen, largest = -1, -math.inf
    for token, logit in zip(ids.tolist(), logits[ids].tolist(), strict=True):
        value = (logit - peak) / temperature + gumbel_one(random_word(key, token))
        if value > largest or chosen < 0:
            chosen, largest = token, value
    return chosen
