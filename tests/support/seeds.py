"""Tests that are run for ranges of seeds, as `--worlds` and `--first-seed` say."""

import pytest

PER_TEST = 25


def parametrize_seeds(metafunc: pytest.Metafunc) -> None:
    """A test with a `first_seed` gets the first of each PER_TEST seeds."""
    if "first_seed" in metafunc.fixturenames:
        first, count = metafunc.config.getoption("first_seed"), metafunc.config.getoption("worlds")
        metafunc.parametrize("first_seed", range(first, first + count, PER_TEST))


def seeds_from(first_seed: int, config: pytest.Config) -> range:
    """The seeds of one of these tests."""
    last = config.getoption("first_seed") + config.getoption("worlds")
    return range(first_seed, min(first_seed + PER_TEST, last))
