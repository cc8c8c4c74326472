"""Prefixes in the processor's memory beside a GPU's pool: what goes there, what comes back, and what fails."""

import random

import pytest

from support.made_up_model import made_up_spec
from support.simulation import Simulation, config, make_request, prompt


def in_turn(prompts: list[int], host_blocks: int, blocks: int = 10, **options: object) -> Simulation:
    """Prompts of 30 tokens, in blocks of 4, one behind the other; the pool has room for one."""
    simulation = Simulation(blocks, **{"config": config(1, 64), **options}, host_blocks=host_blocks)
    for number, which in enumerate(prompts):
        simulation.submit(make_request(number, prompt(30, 100 * which), 6))
        simulation.run()
    return simulation


def moved(simulation: Simulation) -> tuple[int, int]:
    """How many slots went to the processor's memory, and came back."""
    transfers = [transfer for plan in simulation.plans for transfer in plan.transfers]
    written = sum(transfer.target.store == "host" for transfer in transfers)
    return written, sum(transfer.source.store == "host" for transfer in transfers)


def cached(simulation: Simulation) -> list[int]:
    return [simulation.cached_tokens[number] for number in sorted(simulation.cached_tokens)]


def test_what_the_pool_has_lost_comes_back() -> None:
    without, found = in_turn([0, 1, 0, 1], 0), in_turn([0, 1, 0, 1], 20)
    # The pool still has a block of the one before.
    assert cached(without)[2:] == [0, 0] and cached(found)[2:] == [28, 28]
    assert found.outputs == without.outputs
    # What is there is not written again.
    assert moved(found)[0] == 16
    (totals,) = found.cache.shelves.totals()
    assert (totals.shelf, totals.slots, totals.dropped, totals.lost) == ("memory", 16, 0, 0)
    assert totals.read > 10
    came = [each for facts in found.facts for fetched in facts.fetched for each in fetched.came]
    assert {each.tier for each in came} == {"memory"} and sum(each.tokens for each in came) == 4 * totals.read
    assert found.facts[-1].swapped_out == sum(facts.swapped_in for facts in found.facts) == 0


@pytest.mark.parametrize("windows", [(None, 5), (3,), (9, None, 9)])
def test_groups_with_windows_need_their_last_one_only(windows: tuple[int | None, ...]) -> None:
    simulation = in_turn([0, 1, 0], 200, 10 * len(windows), windows=windows)
    assert cached(simulation)[-1] == 28


def test_records_come_back() -> None:
    spec = made_up_spec(4, 8)
    simulation = in_turn([0, 1, 2, 3, 0], 400, spec.blocks_for(36, 64) + 2, spec=spec)
    assert cached(simulation)[-1] == 24


def test_what_was_used_least_recently_makes_room() -> None:
    """There is room for two prompts of 8 blocks."""
    simulation = in_turn([0, 1, 0, 2, 0, 1], 16)
    hits = cached(simulation)
    assert hits[:2] == [0, 0] and hits[2] == hits[4] == 28 and hits[3] == hits[5] == 0
    assert simulation.cache.shelves.totals()[0].slots == 16


def test_what_has_no_room_is_not_written_and_told() -> None:
    """A slot of three blocks, where there are two."""
    simulation = in_turn([0, 1, 0], 2, 60, spec=made_up_spec(4, 8))
    (totals,) = simulation.cache.shelves.totals()
    assert totals.dropped > 0


def test_a_tenant_that_floods_leaves_anothers_blocks() -> None:
    simulation = Simulation(10, config=config(1, 64), host_blocks=24)
    for number, which in enumerate([0, *range(1, 9)]):
        tenant = "loud" if which else "modest"
        simulation.submit(make_request(number, prompt(30, 100 * which), 6, tenant=tenant, salt=tenant))
        simulation.run()
    simulation.submit(make_request(20, prompt(30), 6, tenant="modest", salt="modest"))
    simulation.run()
    assert simulation.cached_tokens[20] == 28


def test_what_is_faster_to_compute_is_computed() -> None:
    simulation = in_turn([0, 1], 40)
    simulation.cache.shelves.computed(100, 0.001)
    simulation.cache.shelves.ordered[0].read_takes(1.0)
    before = moved(simulation)[1]
    simulation.submit(make_request(5, prompt(30), 6))
    simulation.run()
    assert moved(simulation)[1] == before and simulation.cached_tokens[5] == 0


def test_it_stands_beside_what_is_swapped_out() -> None:
    """Both have blocks of their own in the processor's memory."""
    simulation = Simulation(10, config=config(2, 32), swap_blocks=10, host_blocks=12)
    simulation.submit(make_request(0, prompt(8), 24), make_request(1, prompt(8, 50), 24))
    simulation.run()
    targets = [
        (bool(each.target.key), each.target.blocks)
        for plan in simulation.plans
        for each in plan.transfers
        if each.target.store == "host"
    ]
    swapped = {block for kept, blocks in targets if not kept for block in blocks}
    published = {block for kept, blocks in targets if kept for block in blocks}
    assert swapped and published and max(swapped) < 10 <= min(published)


def test_a_plan_that_fails_leaves_nothing_that_is_not_sure() -> None:
    for failing in range(2, 30):
        simulation = Simulation(10, config=config(1, 64, max_outstanding=2), host_blocks=16)
        step = 0
        for number, which in enumerate([0, 1, 0, 1, 0]):
            simulation.submit(make_request(number, prompt(30, 100 * which), 6))
            while simulation.step(fails=step == failing):
                step += 1
        simulation.check_idle()
        simulation.check_outputs()


def test_what_is_late_or_fails_changes_no_token() -> None:
    lost = 0
    for seed in range(20):
        simulation = in_turn([0, 1, 0, 2, 1, 0, 2], 20, late=random.Random(seed))
        assert simulation.outputs == in_turn([0, 1, 0, 2, 1, 0, 2], 0).outputs
        (totals,) = simulation.cache.shelves.totals()
        lost += totals.lost
    assert lost
