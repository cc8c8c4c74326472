"""How well times tell warm prompts from cold ones."""

import numpy as np
from cache_timing import auc, interval


def test_auc() -> None:
    cold, warm = np.array([2.0, 3.0, 3.0]), np.array([1.0, 2.0])
    # Of six pairs the cold one is longer in five, and one is equal.
    assert auc(cold, warm) == 5.5 / 6
    assert auc(warm, cold) == 0.5 / 6
    assert auc(warm + 10, warm) == 1.0 and auc(warm, warm) == 0.5


def test_the_interval_has_what_was_found() -> None:
    generator = np.random.default_rng(1)
    cold, warm = generator.normal(0.5, 1.0, 300), generator.normal(0.0, 1.0, 300)
    low, high = interval(cold, warm, 500)
    assert low < auc(cold, warm) < high < low + 0.12
    # The intervals of times that tell something, and of such that tell nothing.
    assert low > 0.5
    low, high = interval(generator.normal(size=300), warm, 500)
    assert low < 0.5 < high
