"""Random fleets: replicas are killed, hang, refuse, fail and end, users leave; each gets what is theirs, once.

`--worlds` says how many are run, `--first-seed` from where; a failing seed replays exactly.
"""

import functools
from collections import Counter

import pytest

from support.fleet_world import OUTCOMES, FleetWorld, run_fleet
from support.seeds import parametrize_seeds, seeds_from

pytest_generate_tests = parametrize_seeds
EARLY = 40


@functools.cache
def early_fleet(seed: int) -> FleetWorld:
    """One of the first, at which several tests look."""
    return run_fleet(seed)


def test_random_fleets(first_seed: int, pytestconfig: pytest.Config) -> None:
    for seed in seeds_from(first_seed, pytestconfig):
        early_fleet(seed) if seed < EARLY else run_fleet(seed)


def test_a_seed_replays_exactly() -> None:
    for seed in range(6):
        assert run_fleet(seed).notes == early_fleet(seed).notes


def test_everything_that_can_happen_does() -> None:
    outcomes, faults, resumed, retried = Counter[str](), Counter[str](), 0, 0
    for seed in range(EARLY):
        world = early_fleet(seed)
        outcomes += world.outcomes
        faults += world.faults
        resumed += world.resumed
        retried += world.retried
    assert {"whole", "left"} <= set(outcomes) <= set(OUTCOMES)
    assert set(faults) == {"kill", "hang", "busy", "errors", "slow", "end", "blink"}
    assert resumed > 10 and retried > 20
