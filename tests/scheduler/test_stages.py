"""Plans that go through the stages of a pipeline share the work, so that each stage has some."""

import random

import pytest

from support.simulation import Simulation, config, make_request, prompt, rows_of


@pytest.mark.parametrize("stages", [2, 3])
def test_sequences_that_decode_are_shared_out(stages: int) -> None:
    simulation = Simulation(400, config=config(12, 64, max_outstanding=stages, stages=stages))
    simulation.submit(*(make_request(index, prompt(4, 10 * index), 30) for index in range(12)))
    simulation.run()
    steady = [len(plan.rows) for plan in simulation.plans if all(row.count == 1 for row in plan.rows)]
    # Once each has come in, every plan has its part; towards the end some have ended.
    assert steady[:20] == [12 // stages] * 20


@pytest.mark.parametrize("stages", [2, 4])
def test_a_sequence_is_in_one_plan_at_a_time_once_it_decodes(stages: int) -> None:
    simulation = Simulation(40, config=config(4, 64, max_outstanding=stages, stages=stages))
    simulation.submit(make_request(0, prompt(6), 9))
    simulation.step()
    assert len(simulation.plans) == 1 and simulation.plan() is not None
    assert simulation.plan() is None, "its token is not known yet"
    simulation.run()


def test_chunks_of_a_prompt_follow_each_other_at_once() -> None:
    """Four pieces are begun before the first has come back, and the two behind them are as large as they have to be."""
    simulation = Simulation(400, block_size=16, config=config(4, 2048, max_outstanding=4, stages=4))
    simulation.submit(make_request(0, prompt(1600), 2))
    for _ in range(4):
        simulation.plan()
    assert rows_of(simulation, 0) == [(0, 200), (200, 175), (375, 154), (529, 134)]
    simulation.run()
    assert max(count for _, count in rows_of(simulation, 0)) == 200


def test_every_sequence_has_its_turn_however_their_number_changes() -> None:
    rng = random.Random(0)
    for stages in (2, 3):
        simulation = Simulation(400, config=config(16, 64, max_outstanding=stages, stages=stages))
        lengths = [rng.randint(1, 60) for _ in range(40)]
        for index, length in enumerate(lengths):
            simulation.submit(make_request(index, prompt(3, 5 * index), length))
            for _ in range(rng.randint(0, 3)):
                simulation.step()
        simulation.run()
        planned = [{row.sequence for row in plan.rows} for plan in simulation.plans]
        for sequence in range(40):
            turns = [number for number, rows in enumerate(planned) if sequence in rows]
            gaps = [behind - before for before, behind in zip(turns, turns[1:], strict=False)]
            assert max(gaps, default=0) <= 3 * stages
