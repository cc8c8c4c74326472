"""Requests for which nobody waits: they compute when no other does, in short steps, and lose nothing by waiting."""

import random

import pytest

from penstock.core.request import BACKGROUND_PRIORITY, Request
from support.simulation import Simulation, config, make_request, prompt

BEHIND = BACKGROUND_PRIORITY + 5


def background(request_id: int, tokens: list[int], max_tokens: int = 8, n: int = 1) -> Request:
    return make_request(request_id, tokens, max_tokens, n=n, priority=BEHIND)


class Watched(Simulation):
    """A simulation that remembers of which kind each sequence is."""

    def submit(self, *requests: Request) -> None:
        super().submit(*requests)
        self.kinds = {**getattr(self, "kinds", {}), **{each.id: each.background for each in self.sequences()}}

    def kinds_since(self, start: int) -> list[set[bool]]:
        """For each plan from one on, whether its rows are of requests in the background."""
        return [{self.kinds[row.sequence] for row in plan.rows} for plan in self.plans[start:]]


def test_a_step_has_rows_of_one_kind() -> None:
    simulation = Watched(200, config=config(16, 64, max_background_tokens=8))
    simulation.submit(*(background(number, prompt(20, 100 * number), 30) for number in range(3)))
    for _ in range(12):
        simulation.step()
    begun = len(simulation.plans)
    simulation.submit(make_request(10, prompt(40, 1000), 12))
    for _ in range(12):
        simulation.step()
        assert simulation.kinds_since(begun)[-1] == {False}
    assert 10 not in {request for request, _ in simulation.unfinished()}
    simulation.step()
    assert simulation.kinds_since(begun)[-1] == {True}
    simulation.run()
    assert simulation.scheduler.snapshot().preemptions == 0
    assert simulation.scheduler.snapshot().recomputed_tokens == 0


@pytest.mark.parametrize(("budget", "longest"), [(256, 8), (64, 8), (6, 6)])
def test_steps_in_the_background_are_short(budget: int, longest: int) -> None:
    simulation = Simulation(400, config=config(min(64, budget), budget, max_background_tokens=8))
    simulation.submit(
        background(0, prompt(50), 5), background(1, prompt(9, 500), 6, n=20), background(2, prompt(3, 900))
    )
    simulation.run()
    assert max(sum(row.count for row in plan.rows) for plan in simulation.plans) == longest


def test_somebody_who_waits_gets_rows_and_blocks_at_once() -> None:
    # Every row and nearly every block is held for requests in the background, which share a prefix.
    simulation = Watched(24, config=config(4, 64, max_background_tokens=8))
    shared = prompt(16)
    simulation.submit(*(background(number, [*shared, 100 + number], 20) for number in range(4)))
    for _ in range(10):
        simulation.step()
    assert simulation.scheduler.snapshot().running == 4
    begun = len(simulation.plans)
    simulation.submit(*(make_request(10 + number, prompt(16, 1000 * number), 4) for number in range(4)))
    simulation.step()
    assert len(simulation.plans[begun].rows) == 4 and simulation.kinds_since(begun) == [{False}]
    simulation.run()


@pytest.mark.parametrize(("priority", "preemptions"), [(0, 2), (BACKGROUND_PRIORITY, 0)])
def test_only_somebody_who_waits_takes_blocks_that_others_share(priority: int, preemptions: int) -> None:
    simulation = Simulation(12, config=config(4, 64, max_background_tokens=64))
    for number in range(2):
        simulation.submit(background(number, [*prompt(16), 100 + number], 7))
        simulation.step()
    # The four blocks that they share come back with the last of them only, and do not count beforehand.
    simulation.submit(make_request(2, prompt(36, 1000), 4, priority=priority))
    simulation.step()
    assert simulation.scheduler.snapshot().preemptions == preemptions
    assert (2 in {sequence.request.request_id for sequence in simulation.running()}) == (preemptions > 0)
    simulation.run()


def test_somebody_who_waits_for_a_block_that_the_background_computes_is_not_stuck() -> None:
    simulation = Watched(100, config=config(8, 64, max_background_tokens=4, max_outstanding=2))
    simulation.submit(background(0, prompt(40), 4))
    simulation.plan()
    simulation.submit(make_request(1, prompt(40), 4))
    simulation.plan()
    assert simulation.kinds_since(0) == [{True}, {True}], "the step is theirs"
    simulation.run()
    assert simulation.finishes == {(0, 0): "length", (1, 0): "length"}


@pytest.mark.parametrize("seed", range(25))
def test_random_mixtures_end_with_the_right_tokens(seed: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation(
        rng.choice([30, 60, 200]),
        config=config(
            rng.choice([2, 4, 8]), 32, max_background_tokens=rng.choice([1, 4, 16]), max_outstanding=rng.choice([1, 2])
        ),
        windows=rng.choice([(None,), (None, 12)]),
    )
    pending = [
        make_request(
            number,
            prompt(rng.randint(1, 40), 50 * rng.randint(0, 3)),
            rng.randint(1, 12),
            n=rng.choice([1, 1, 2]),
            priority=rng.choice([0, 1, BEHIND, BEHIND, BEHIND - 1]),
        )
        for number in range(30)
    ]
    while pending:
        if rng.random() < 0.3:
            simulation.submit(pending.pop())
        if rng.random() < 0.05 and simulation.requests:
            simulation.abort(rng.choice(list(simulation.requests)))
        simulation.step()
    simulation.run()
