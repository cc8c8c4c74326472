"""What is asked for one token, and what comes back: plain values, which the native kernels take as they are."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.sampling import SamplingParams
from penstock.sampling.noise import Purpose, log_one

_MASK64 = 2**64 - 1


class Choice(NamedTuple):
    """How one token is chosen.

    Attributes:
        row: which one of the logits.
        mask: which one of the masks of allowed tokens; -1 allows all.
        position: output tokens before this one.
        temperature: 0 takes the largest logit, the first of equals.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        log_min_p: minus infinity keeps all.
        logprobs: how many of the most likely tokens to report beside the chosen one, -1 for no log probabilities.
        seed: 0..2^64 - 1.
        sample_index: of the request's samples.
        purpose: of the random numbers.
    """

    row: int
    mask: int
    position: int
    temperature: float
    top_k: int
    top_p: float
    log_min_p: float
    logprobs: int
    seed: int
    sample_index: int
    purpose: int


class Chosen(NamedTuple):
    """One token.

    Attributes:
        token: its id. Meaningless where the peak is not finite.
        peak: the largest logit of an allowed token, NaN where any token's is NaN.
        logprob: natural log probability of `token`, if asked for.
        top_tokens: the most likely tokens, by (probability descending, id); masked ones are left out.
        top_logprobs: theirs.
    """

    token: int
    peak: float
    logprob: float
    top_tokens: list[int]
    top_logprobs: list[float]


Masks = NDArray[np.uint32]
"""[M, ceil(V / 32)], contiguous: bit `token % 32` of word `token // 32` says whether the token is allowed."""

ChosenFields = tuple[int, float, float, list[int], list[float]]
"""The fields of a `Chosen`, in order."""

Choose = Callable[[NDArray[np.float32], Sequence[Choice], Masks], Sequence[ChosenFields]]
"""Takes logits, float32 [S, V], contiguous, and masks; gives for each choice the fields of a `Chosen`, in order."""


def bits_of(mask: NDArray[np.uint32], count: int) -> NDArray[np.bool_]:
    """Whether each of the first `count` tokens is allowed by one mask."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:count].view(np.bool_)


Constants = tuple[float, int, float, float, int, int, int, int]
"""The fields of a `Choice` that stay as they are from token to token: all but row, mask and position."""


def likeliest(count: int) -> Constants:
    """The likeliest token, whatever the seed, with the `count` likeliest ones beside it."""
    return 0.0, 0, 1.0, -math.inf, count, 0, 0, int(Purpose.TOKEN)


def constants_of(params: SamplingParams, sample_index: int, purpose: Purpose = Purpose.TOKEN) -> Constants:
    """Those of a row with these parameters."""
    log_min_p = log_one(max(params.min_p, sys.float_info.min)) if params.min_p > 0.0 else -math.inf
    return (
        params.temperature,
        max(params.top_k, 0),
        params.top_p,
        log_min_p,
        -1 if params.logprobs is None else params.logprobs,
        (params.seed or 0) & _MASK64,
        sample_index,
        int(purpose),
    )
