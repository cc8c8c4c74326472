"""Random worlds: engines end, hang and fail, users leave, time jumps; everybody gets what is theirs, exactly once.

`--worlds` says how many are run, `--first-seed` from where; a failing seed replays exactly.
"""

import functools
from collections import Counter

import pytest

from support.seeds import parametrize_seeds, seeds_from
from support.world import OUTCOMES, World, run_world
from support.world_jobs import scenario

pytest_generate_tests = parametrize_seeds
EARLY = 60


@functools.cache
def early_world(seed: int) -> World:
    """One of the first, at which several tests look."""
    return run_world(seed)


def test_random_worlds(first_seed: int, pytestconfig: pytest.Config) -> None:
    for seed in seeds_from(first_seed, pytestconfig):
        early_world(seed) if seed < EARLY else run_world(seed)


def test_a_seed_replays_exactly() -> None:
    for seed in range(16):
        assert run_world(seed).trace() == early_world(seed).trace()


def test_different_seeds_make_different_worlds() -> None:
    assert len({early_world(seed).trace() for seed in range(8)}) == 8


def test_everything_that_can_happen_does() -> None:
    """A world in which nothing goes wrong proves nothing."""
    outcomes: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    restarts = preemptions = hits = hung = 0
    for seed in range(EARLY):
        world = early_world(seed)
        outcomes += world.outcomes
        refusals += world.server.refusals
        restarts += len(world.workers) - 1
        hung += sum(worker.hung for worker in world.workers)
        for worker in world.workers:
            if worker.core is not None:
                load = worker.core.snapshot()
                preemptions += load.preemptions
                hits += load.prefix_hit_tokens
    assert set(outcomes) == set(OUTCOMES)
    assert restarts > 30 and hung > 2 and preemptions > 10 and hits > 200
    assert set(refusals) == {"queue_full", "memory_pressure", "slo_unreachable"}


def test_what_ends_every_engine_is_given_up_and_nobody_else_is() -> None:
    poisoned = [seed for seed in range(200) if any(job.poison for job in scenario(seed).jobs)][:10]
    ended = Counter(job.outcome for seed in poisoned for job in run_world(seed).plan.jobs if job.poison)
    assert set(ended) <= {"given up", "refused", "overloaded"} and ended["given up"] >= 5
