"""Preempted sequences whose blocks are swapped out: what is copied, what comes back, and what else becomes of it."""

import pytest

from penstock.cache.swap import SwappedBlocks
from penstock.cache.transfers import Batch
from support.simulation import Simulation, config, make_request, prompt, rows_of


def two_for_one_pool(swap_blocks: int, **options: object) -> Simulation:
    """Two requests that both grow to eight blocks, in a pool of ten; the second is preempted."""
    simulation = Simulation(
        10, **{"config": config(2, 32), "prefix_caching": False, **options}, swap_blocks=swap_blocks
    )
    simulation.submit(make_request(0, prompt(8), 24), make_request(1, prompt(8, 50), 24))
    return simulation


def until_swapped(simulation: Simulation) -> None:
    """Plan and commit until the newest plan, which is outstanding, swaps somebody out."""
    for _ in range(100):
        if simulation.outstanding == simulation.config.max_outstanding:
            simulation.commit()
        plan = simulation.plan()
        if plan is None:
            simulation.commit()
        elif plan.pairs("pool", "host"):
            return
    pytest.fail("nobody is swapped out")


def swaps(simulation: Simulation) -> tuple[list[int], list[int]]:
    """The host blocks of all that were planned."""
    out = [host for plan in simulation.plans for _, host in plan.pairs("pool", "host")]
    return out, [host for plan in simulation.plans for host, _ in plan.pairs("host", "pool")]


def used(simulation: Simulation) -> int:
    return simulation.scheduler.snapshot().swap_blocks_used


def test_it_goes_on_where_it_was() -> None:
    simulation = two_for_one_pool(10)
    simulation.run()
    out, back = swaps(simulation)
    assert len(out) == len(back) == 5
    assert set(out) == set(back)
    rows = rows_of(simulation, 1)
    ends = [start + count for start, count in rows]
    assert [start for start, _ in rows[1:]] == ends[:-1], "no position is computed twice"
    load = simulation.scheduler.snapshot()
    assert (load.preemptions, load.recomputed_tokens, load.prefill_tokens) == (1, 0, 16)
    returned = [fact for facts in simulation.facts for fact in facts.admissions if fact.again]
    assert [fact.swapped for fact in returned] == [20]


@pytest.mark.parametrize("swap_blocks", [0, 4])
def test_where_there_is_no_room_it_is_computed_again(swap_blocks: int) -> None:
    """All of it or nothing; that there was too little room is told, where there was any."""
    simulation = two_for_one_pool(swap_blocks)
    simulation.run()
    assert swaps(simulation) == ([], [])
    load = simulation.scheduler.snapshot()
    assert load.preemptions == 1 and load.recomputed_tokens >= 20
    assert sum(facts.not_swapped for facts in simulation.facts) == (1 if swap_blocks else 0)


def test_who_is_aborted_gives_its_copy_back() -> None:
    simulation = two_for_one_pool(10)
    until_swapped(simulation)
    assert used(simulation) == 5
    simulation.abort(1)
    assert used(simulation) == 5, "it is on its way"
    simulation.commit()
    assert used(simulation) == 0
    simulation.run()


def test_a_copy_that_no_plan_has_made_yet_is_not_made_for_who_has_gone() -> None:
    """Its host blocks go to the next who is preempted, and nothing else is copied into them."""
    simulation = two_for_one_pool(5)
    simulation.step()
    second = simulation.running()[1]
    simulation.scheduler._preempt(second)
    held = used(simulation)
    assert held > 0
    simulation.abort(1)
    assert used(simulation) == 0
    simulation.submit(make_request(2, prompt(8, 90), 24))
    simulation.run()
    out, back = swaps(simulation)
    assert len(out) == len(back) == 5


@pytest.mark.parametrize("outstanding", [1, 2])
def test_a_copy_of_a_step_that_failed_is_given_up(outstanding: int) -> None:
    """The sequences with a row in it fail; the one that was swapped out is computed again, and gets its tokens."""
    simulation = two_for_one_pool(10, config=config(2, 32, max_outstanding=outstanding))
    until_swapped(simulation)
    while simulation.outstanding > 1:
        simulation.commit()
    assert used(simulation) == 5
    failing = {row.sequence for row in simulation.plans[-1].rows}
    simulation.commit(fails=True)
    assert used(simulation) == 0
    simulation.run()
    assert simulation.finishes == {(0, 0): "error" if 0 in failing else "length", (1, 0): "length"}
    assert swaps(simulation)[1] == []
    assert simulation.scheduler.snapshot().recomputed_tokens > 0


def test_nothing_comes_back_before_the_plan_that_copies_it_has_committed() -> None:
    """Else a sequence would go on from a copy that may fail."""
    simulation = Simulation(40, config=config(1, 32, max_outstanding=2), swap_blocks=10, prefix_caching=False)
    simulation.submit(make_request(0, prompt(8), 8, priority=1))
    simulation.plan()
    simulation.commit()
    simulation.submit(make_request(1, prompt(8, 50), 8))
    plan = simulation.plan()
    assert plan is not None and len(plan.pairs("pool", "host")) == 2
    simulation.abort(1)
    assert simulation.plan() is None, "there is room for it, but its copy is not there"
    simulation.commit()
    plan = simulation.plan()
    assert plan is not None and len(plan.pairs("host", "pool")) == 2
    simulation.run()


def test_what_the_prefix_cache_still_has_is_shared() -> None:
    """Of what was copied only the blocks come back that were evicted meanwhile, or never published."""
    simulation = two_for_one_pool(10, prefix_caching=True)
    simulation.run()
    out, back = swaps(simulation)
    assert len(out) == 5 and 0 < len(back) < 5
    assert simulation.scheduler.snapshot().recomputed_tokens == 0


def test_what_a_window_has_passed_is_not_copied() -> None:
    """Who computes position 22 next sees positions 18 and later in a group with a window of five."""
    simulation = Simulation(16, windows=(None, 5), config=config(2, 8), prefix_caching=False, swap_blocks=20)
    simulation.submit(make_request(0, prompt(8), 24), make_request(1, prompt(8, 50), 24))
    simulation.run()
    out, back = swaps(simulation)
    assert [fact.swapped for facts in simulation.facts for fact in facts.admissions if fact.again] == [22]
    assert len(out) == len(back) == 6 + 2
    assert simulation.scheduler.snapshot().recomputed_tokens == 0


def test_samples_that_share_blocks_each_come_back() -> None:
    simulation = Simulation(10, config=config(4, 32), swap_blocks=40)
    simulation.submit(make_request(0, prompt(9), 20, n=3))
    simulation.run()
    load = simulation.scheduler.snapshot()
    assert load.preemptions >= 2 and load.recomputed_tokens == 0
    assert len(simulation.finishes) == 3


def test_a_sequence_that_cannot_copy_a_published_block_goes_out_and_in() -> None:
    """Alone in a full pool, it holds the published block that it has to write."""
    simulation = Simulation(15, block_size=2, config=config(4, 64, max_outstanding=2), swap_blocks=15)
    simulation.submit(make_request(0, prompt(29), 2, n=2))
    simulation.run()
    out, back = swaps(simulation)
    assert back and set(back) <= set(out)


def test_who_has_a_copy_does_not_wait_for_others_to_compute_the_same() -> None:
    simulation = Simulation(40, config=config(4, 8))
    simulation.submit(make_request(0, prompt(20)), make_request(1, prompt(20)))
    simulation.plan()
    _, waiting = simulation.sequences()
    room, hit = simulation.scheduler._room, simulation.cache.longest_hit(waiting.blocks, waiting.tokens)
    assert room.would_stand_back(waiting, hit)
    waiting.swapped = SwappedBlocks(6, [[(0, (0,)), (1, (1,))]], Batch())
    assert not room.would_stand_back(waiting, hit)
