"""Random fleets: replicas are killed, hang, refuse, fail and end, users leave; each gets what is theirs, once.

`--worlds` says how many are run, `--first-seed` from where; a failing seed replays exactly.
"""

from collections import Counter

import pytest

from support.fleet_world import OUTCOMES, run_fleet
from support.seeds import parametrize_seeds, seeds_from

pytest_generate_tests = parametrize_seeds


def test_random_fleets(first_seed: int, pytestconfig: pytest.Config) -> None:
    for seed in seeds_from(first_seed, pytestconfig):
        run_fleet(seed)


def test_a_seed_replays_exactly() -> None:
    for seed in range(6):
        assert run_fleet(seed).notes == run_fleet(seed).notes


def test_everything_that_can_happen_does() -> None:
    outcomes, faults, resumed, retried = Counter[str](), Counter[str](), 0, 0
    for seed in range(40):
        world = run_fleet(seed)
        outcomes += world.outcomes
        faults += world.faults
        resumed += world.resumed
        retried += world.retried
    assert {"whole", "left"} <= set(outcomes) <= set(OUTCOMES)
    assert set(faults) == {"kill", "hang", "busy", "errors", "slow", "end", "blink"}
    assert resumed > 10 and retried > 20
