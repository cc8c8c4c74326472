"""Requests whose prompts are scored: each position once, within the step's bound, whatever else happens."""

import pytest

from support.simulation import Simulation, config, make_request, prompt, rows_of


def scored_of(simulation: Simulation, sequence: int) -> list[tuple[int, int]]:
    """The scored ranges of every row that a sequence had, in order."""
    return [
        row.scored
        for plan in simulation.plans
        for row in plan.rows
        if row.sequence == sequence and row.scored != (0, 0)
    ]


@pytest.mark.parametrize("length", [1, 2, 3, 9])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("bound", [1, 4, 128])
def test_all_but_the_last_position_are_scored(length: int, max_tokens: int, bound: int) -> None:
    simulation = Simulation(16, config=config(max_scored_positions=bound))
    simulation.submit(make_request(0, prompt(length), max_tokens, prompt_logprobs=0))
    simulation.run()
    assert len(simulation.outputs[0, 0]) == max_tokens
    assert simulation.finishes[0, 0] == "length"
    ranges = scored_of(simulation, 0)
    assert [position for first, end in ranges for position in range(first, end)] == list(range(length - 1))
    assert all(end - first <= bound for first, end in ranges)


def test_nothing_is_sampled_where_nothing_is_generated() -> None:
    simulation = Simulation(16)
    simulation.submit(make_request(0, prompt(9), 0, n=3, prompt_logprobs=2))
    simulation.run()
    assert [row.samples for plan in simulation.plans for row in plan.rows] == [()]
    assert simulation.finishes == {(0, index): "length" for index in range(3)}


def test_several_rows_share_the_bound() -> None:
    simulation = Simulation(100, config=config(8, 64, max_scored_positions=10))
    simulation.submit(
        make_request(0, prompt(8), 4, prompt_logprobs=0), make_request(1, prompt(20, 100), 4, prompt_logprobs=0)
    )
    simulation.plan()
    assert [(row.start, row.count) for row in simulation.plans[0].rows] == [(0, 8), (0, 3)]
    simulation.commit()
    simulation.run()
    assert rows_of(simulation, 1)[:3] == [(0, 3), (3, 10), (13, 7)]


def test_others_are_admitted_where_the_bound_is_spent() -> None:
    simulation = Simulation(100, config=config(8, 64, max_scored_positions=4))
    simulation.submit(
        make_request(0, prompt(30), 2, prompt_logprobs=0),
        make_request(1, prompt(30, 100), 2, prompt_logprobs=0),
        make_request(2, prompt(10, 200), 2),
    )
    simulation.step()
    assert [sequence.request.request_id for sequence in simulation.running()] == [0, 2]
    simulation.run()


def test_nobody_is_preempted_for_one_that_could_score_nothing() -> None:
    simulation = Simulation(40, config=config(2, 64, max_scored_positions=2))
    simulation.submit(
        make_request(0, prompt(20), 2, priority=1, prompt_logprobs=0), make_request(1, prompt(4, 50), 20, priority=1)
    )
    simulation.step()
    simulation.submit(make_request(2, prompt(9, 100), 2, priority=0, prompt_logprobs=0))
    simulation.step()
    assert simulation.scheduler.snapshot().preemptions == 0
    simulation.run()


def test_nobody_is_preempted_where_the_running_score_all_that_a_step_may() -> None:
    simulation = Simulation(40, config=config(2, 64, max_scored_positions=2))
    simulation.submit(
        make_request(0, prompt(5), 9, priority=1, prompt_logprobs=0), make_request(1, prompt(4, 50), 20, priority=1)
    )
    simulation.step()
    simulation.submit(make_request(2, prompt(9, 100), 2, priority=0, prompt_logprobs=0))
    simulation.step()
    assert simulation.scheduler.snapshot().preemptions == 0
    simulation.step()
    assert simulation.scheduler.snapshot().preemptions == 1, "nothing of theirs is left to score"
    simulation.run()


def test_a_scored_prompt_takes_nothing_from_the_prefix_cache_and_leaves_its_blocks_there() -> None:
    simulation = Simulation(40)
    for request_id in range(2):
        simulation.submit(make_request(request_id, prompt(17), 3, prompt_logprobs=0))
        simulation.run()
        assert simulation.cached_tokens[request_id] == 0
    simulation.submit(make_request(2, prompt(17), 3))
    simulation.run()
    assert simulation.cached_tokens[2] == 16
    load = simulation.scheduler.snapshot()
    assert (load.prefix_queried_tokens, load.prefix_hit_tokens) == (17, 16)


def test_a_scored_prompt_does_not_wait_for_blocks_that_it_could_not_use() -> None:
    simulation = Simulation(40, config=config(4, 64, max_chunk=8))
    simulation.submit(make_request(0, prompt(30), 2), make_request(1, prompt(30), 2, prompt_logprobs=0))
    simulation.step()
    assert [(row.sequence, row.start) for row in simulation.plans[0].rows] == [(0, 0), (1, 0)]
    simulation.run()


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("bound", [1, 3, 128])
def test_preemption_repeats_no_score(caching: bool, depth: int, bound: int) -> None:
    """Requests of priority 0 throw out those that are scored, at every place of their prompts."""
    for steps in range(1, 14):
        simulation = Simulation(
            12,
            config=config(1, 5, max_outstanding=depth, max_scored_positions=bound),
            prefix_caching=caching,
        )
        simulation.submit(make_request(0, prompt(22), 6, n=2, priority=1, prompt_logprobs=0))
        for _ in range(steps):
            simulation.step()
        simulation.submit(make_request(1, prompt(9, 100), 2))
        simulation.run()
        assert len(simulation.scores[0]) == 21


def test_a_failed_row_ends_a_request_while_its_prompt_is_scored() -> None:
    simulation = Simulation(40, config=config(4, 8))
    simulation.submit(make_request(0, prompt(30), 0, prompt_logprobs=0), make_request(1, prompt(5, 100), 3))
    simulation.step()
    simulation.executor.failing.add(0)
    simulation.run()
    assert simulation.finishes == {(0, 0): "error", (1, 0): "length"}


def test_samples_share_the_scores_of_their_prompt() -> None:
    simulation = Simulation(60, config=config(2, 8))
    simulation.submit(make_request(0, prompt(21), 5, n=4, prompt_logprobs=0))
    simulation.run()
    assert len(simulation.scores[0]) == 20
