"""Random fleets: replicas are killed, hang, refuse, fail and end, users leave; each gets what is theirs, once.

`--worlds` says how many are run, `--first-seed` from where; a failing seed replays exactly.
"""

from collections import Counter

import pytest

from support.fleet_world import OUTCOMES, run_fleet

SEEDS_PER_TEST = 25


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        first, count = metafunc.config.getoption("first_seed"), metafunc.config.getoption("worlds")
        metafunc.parametrize("first_seed", range(first, first + count, SEEDS_PER_TEST))


def test_random_fleets(first_seed: int, pytestconfig: pytest.Config) -> None:
    last = pytestconfig.getoption("first_seed") + pytestconfig.getoption("worlds")
    for seed in range(first_seed, min(first_seed + SEEDS_PER_TEST, last)):
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
    assert set(faults) == {"kill", "hang", "busy", "errors", "slow", "end"}
    assert resumed > 10 and retried > 20
