"""Choosing tokens, as the kernel benchmark measures it: what is asked for, and a call that does it."""

import itertools
from collections.abc import Callable

import numpy as np

from penstock.bench.single import random_values
from penstock.core.sampling import SamplingParams
from penstock.kernels.cpu.native import native
from penstock.sampling.choice import Choice, constants_of

SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.7": SamplingParams(temperature=0.7, seed=1),
    "temperature 0.7, top_p 0.9": SamplingParams(temperature=0.7, top_p=0.9, seed=1),
}
# Standard deviation of random logits: a model is sure of some tokens and unsure of others.
_DEVIATION = 3


def compile_choice(params: SamplingParams, rows: int, vocabulary: int) -> Callable[[], object]:
    """A call that chooses one token for each of `rows` rows of logits, each time at the next position."""
    logits = (_DEVIATION * random_values(rows, vocabulary)).numpy()
    constants, positions = constants_of(params, 0), itertools.count()
    no_masks = np.empty((0, (vocabulary + 31) // 32), np.uint32)

    def choose() -> object:
        position = next(positions)
        return native.choose(logits, [Choice(row, -1, position, *constants) for row in range(rows)], no_masks)

    return choose
