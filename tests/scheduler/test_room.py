"""A tenant that holds many rows or blocks leaves some for others."""

import random
from collections import Counter

import pytest

from penstock.scheduler.room import RESERVED_PART
from support.simulation import Simulation, config, make_request, prompt


def rows_by_tenant(simulation: Simulation) -> Counter[str]:
    """How many sequences of each tenant run."""
    return Counter(sequence.request.standing.tenant for sequence in simulation.running())


def seen_before(simulation: Simulation) -> None:
    """A tenant that has nothing any more, and may come again."""
    simulation.submit(make_request(10_000, prompt(1), 1, tenant="quiet"))
    simulation.run()


def test_one_tenant_may_have_every_row() -> None:
    simulation = Simulation(400, config=config(16, 512))
    simulation.submit(*(make_request(n, prompt(4, 10 * n), 50, tenant="noisy") for n in range(40)))
    simulation.step()
    assert rows_by_tenant(simulation) == {"noisy": 16}


def test_where_another_may_come_some_rows_are_left_to_it() -> None:
    simulation = Simulation(400, config=config(16, 512))
    seen_before(simulation)
    simulation.submit(*(make_request(n, prompt(4, 10 * n), 50, tenant="noisy") for n in range(40)))
    for _ in range(8):
        simulation.step()
    free = 16 // RESERVED_PART
    assert rows_by_tenant(simulation) == {"noisy": 16 - free}
    simulation.submit(*(make_request(100 + n, prompt(4, 500 + 10 * n), 4, tenant="quiet") for n in range(3)))
    simulation.step()
    # One comes in at once, and so does who else comes; the next waits for a row.
    assert rows_by_tenant(simulation) == {"noisy": 16 - free, "quiet": 1}
    simulation.submit(make_request(200, prompt(4, 900), 4, tenant="another"))
    simulation.step()
    assert rows_by_tenant(simulation) == {"noisy": 16 - free, "quiet": 1, "another": 1}
    simulation.run()
    assert simulation.scheduler.snapshot().preemptions == 0


def test_rows_that_are_left_serve_a_tenant_of_little_weight() -> None:
    simulation = Simulation(800, config=config(16, 512))
    seen_before(simulation)
    simulation.submit(*(make_request(n, prompt(4, 10 * n), 120, tenant="noisy", weight=100.0) for n in range(30)))
    for _ in range(6):
        simulation.step()
    for n in range(100, 103):
        # It was served more by its weight than the other one, whose turn it is, and which may not have the row.
        simulation.submit(make_request(n, prompt(4, 10 * n), 4, tenant="quiet"))
        simulation.step()
        assert rows_by_tenant(simulation) == {"noisy": 14, "quiet": 1}
        while rows_by_tenant(simulation)["quiet"]:
            simulation.step()
    simulation.run()


def test_who_has_less_than_its_part_may_have_rows_that_are_left() -> None:
    simulation = Simulation(800, config=config(32, 512))
    seen_before(simulation)
    simulation.submit(*(make_request(n, prompt(4, 10 * n), 50, tenant="noisy") for n in range(60)))
    for _ in range(10):
        simulation.step()
    assert rows_by_tenant(simulation) == {"noisy": 28}
    simulation.submit(*(make_request(100 + n, prompt(4, 700 + 10 * n), 30, tenant="quiet") for n in range(5)))
    for _ in range(8):
        simulation.step()
    assert rows_by_tenant(simulation) == {"noisy": 28, "quiet": 3}
    simulation.run()


def test_where_another_may_come_some_blocks_are_left_to_it() -> None:
    simulation = Simulation(80, config=config(64, 512), prefix_caching=False)
    seen_before(simulation)
    simulation.submit(*(make_request(n, prompt(30, 100 * n), 2, tenant="noisy") for n in range(40)))
    for _ in range(12):
        simulation.plan()
        running = rows_by_tenant(simulation)["noisy"]
        # Eight blocks each, and one that each may grow by.
        assert running <= 8
        assert simulation.cache.pool.num_available >= 80 // RESERVED_PART
        simulation.commit()
    simulation.submit(make_request(100, prompt(30, 5000), 2, tenant="quiet"))
    simulation.step()
    assert rows_by_tenant(simulation)["quiet"] == 1
    simulation.run()


def test_a_request_that_needs_the_whole_pool_comes_in_once_nothing_of_its_tenant_runs() -> None:
    simulation = Simulation(40, config=config(8, 64))
    seen_before(simulation)
    simulation.submit(
        make_request(0, prompt(20), 30, tenant="noisy"), make_request(1, prompt(150, 200), 10, tenant="noisy")
    )
    simulation.run()
    assert list(simulation.finishes) == [(10_000, 0), (0, 0), (1, 0)]


def test_rows_of_those_who_make_way_do_not_count() -> None:
    """A tenant has as many rows as it may; its requests of a higher priority take those of the lower."""
    simulation = Simulation(400, config=config(16, 512))
    seen_before(simulation)
    simulation.submit(*(make_request(n, prompt(4, 10 * n), 200, tenant="noisy", priority=1) for n in range(30)))
    for _ in range(30):
        simulation.step()
    assert rows_by_tenant(simulation) == {"noisy": 14}
    simulation.submit(*(make_request(100 + n, prompt(4, 500 + 10 * n), 60, tenant="noisy") for n in range(30)))
    for _ in range(20):
        simulation.step()
    assert Counter(sequence.order[0] for sequence in simulation.running()) == {0: 14, 1: 2}
    simulation.run()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(max(10, metafunc.config.getoption("workloads") // 100)))


def test_a_quiet_tenant_is_in_the_next_steps_whatever_others_hold(seed: int) -> None:
    """Noisy tenants keep the batch as full as they can, with any lengths and priorities, in pools of any size.

    A request of a tenant of which nothing runs waits for blocks at most, and everything ends: nobody is let in and
    preempted again and again.
    """
    rng = random.Random(seed)
    rows = rng.choice([8, 16, 24])
    blocks = rng.choice([40, 100, 1000])
    simulation = Simulation(
        blocks,
        config=config(rows, rng.choice([64, 256]), target_itl=rng.choice([None, 0.1])),
        prefix_caching=rng.random() < 0.5,
        seconds=lambda plan: plan.num_tokens / 1000,
    )
    seen_before(simulation)
    for n in range(60):
        tenant = rng.choice(["noisy", "noisy", "other"])
        priority = rng.choice([0, 0, 0, 2**31])
        tokens = prompt(rng.randint(1, 60), 100 * n)
        simulation.submit(make_request(n, tokens, rng.randint(1, 60), tenant=tenant, priority=priority))
    waits = []
    for n in range(100, 112):
        for _ in range(rng.randint(1, 12)):
            simulation.step()
        simulation.submit(make_request(n, prompt(rng.randint(1, 12), 100 * n), 2, tenant="quiet"))
        waited = 0
        while not simulation.outputs.get((n, 0)):
            assert simulation.step()
            waited += 1
        waits.append(waited)
    if blocks == 1000:
        assert max(waits) <= 3
    simulation.run()
    assert simulation.scheduler.snapshot().preemptions <= 60 + 40 * (blocks < 1000)
