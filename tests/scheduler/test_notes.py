"""What is noted of plans: who came in, with what from the cache, and what keeps those who wait."""

from collections.abc import Callable

import pytest

from penstock.core.facts import Chunk, PrefixFound, StepFacts
from penstock.core.request import BACKGROUND_PRIORITY
from support.simulation import Simulation, config, make_request, prompt


def admissions(simulation: Simulation, request_id: int) -> list[tuple[bool, PrefixFound]]:
    """How a request came in: whether again, and what was in the cache."""
    facts = [fact for step in simulation.facts for fact in step.admissions]
    return [(fact.again, fact.prefix) for fact in facts if fact.request_id == request_id]


def first(simulation: Simulation) -> StepFacts:
    """The facts of the next step."""
    assert simulation.step()
    return simulation.facts[-1]


def test_rows_are_chunks_or_decodes() -> None:
    simulation = Simulation(40, config=config(4, 8))
    simulation.submit(make_request(0, prompt(11), 3))
    facts = [first(simulation) for _ in range(4)]
    assert [step.chunks for step in facts] == [[Chunk(0, 0, 0, 8)], [Chunk(0, 0, 8, 3)], [], []]
    assert [(step.rows, step.decodes, step.sampled, step.context) for step in facts] == [
        (1, 0, 0, 0),
        (1, 0, 1, 0),
        (1, 1, 1, 12),
        (1, 1, 1, 13),
    ]


def test_forks_are_counted_with_the_row_that_they_come_from() -> None:
    simulation = Simulation(40)
    simulation.submit(make_request(0, prompt(6), 3, n=3))
    step = first(simulation)
    assert (step.rows, step.sampled) == (1, 3)
    assert first(simulation).decodes == 3


def test_what_the_cache_had_is_told_with_an_admission() -> None:
    simulation = Simulation(40)
    simulation.submit(make_request(0, prompt(12), 1))
    simulation.run()
    simulation.submit(make_request(1, [*prompt(10), 77, 78, 79], 1), make_request(2, prompt(12), 1))
    simulation.run()
    assert admissions(simulation, 0) == [(False, PrefixFound(8, 0, "unseen"))]
    assert admissions(simulation, 1) == [(False, PrefixFound(12, 8, "different", position=10, cached_token=10))]
    assert admissions(simulation, 2) == [(False, PrefixFound(11, 11))]


def test_what_differs_is_told_although_its_block_is_taken_in_the_same_step() -> None:
    simulation = Simulation(6)
    simulation.submit(make_request(0, prompt(12), 1))
    simulation.run()
    simulation.submit(make_request(1, [*prompt(8), *range(70, 84)], 1))
    simulation.run()
    assert admissions(simulation, 1) == [(False, PrefixFound(20, 8, "different", position=8, cached_token=8))]


def test_without_a_cache_nothing_is_looked_up() -> None:
    simulation = Simulation(40, prefix_caching=False)
    simulation.submit(make_request(0, prompt(12), 1), make_request(1, prompt(2), 1))
    simulation.run()
    assert admissions(simulation, 0) == [(False, PrefixFound(0, 0, "off"))]


def test_who_was_preempted_is_told_and_comes_again() -> None:
    simulation = Simulation(10, config=config(2, 64))
    simulation.submit(make_request(0, prompt(12), 16), make_request(1, prompt(12, 50), 16))
    simulation.run()
    assert 1 in [request for step in simulation.facts for request in step.preempted]
    assert [again for again, _ in admissions(simulation, 1)] == [False, True]


def rows_are_full(simulation: Simulation) -> None:
    simulation.submit(make_request(2, prompt(4, 90), 1))


def blocks_are_used(simulation: Simulation) -> None:
    simulation.submit(make_request(2, prompt(100, 90), 1))


@pytest.mark.parametrize(
    ("held", "limits", "blocks", "wait"),
    [
        ("rows", config(2, 64), 200, rows_are_full),
        ("blocks", config(8, 256), 30, blocks_are_used),
        ("budget", config(2, 8), 200, rows_are_full),
    ],
)
def test_what_keeps_the_first_that_waits(
    held: str, limits: object, blocks: int, wait: Callable[[Simulation], None]
) -> None:
    simulation = Simulation(blocks, config=limits)  # type: ignore[arg-type]
    simulation.submit(make_request(0, prompt(20), 9), make_request(1, prompt(20, 40), 9))
    if held == "budget":
        # The first takes all of the step; nobody else has come in.
        assert first(simulation).held == "budget"
        return
    first(simulation)
    wait(simulation)
    assert first(simulation).held == held


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    simulation = Simulation(100, config=config(8, 8))
    simulation.submit(make_request(0, prompt(40), 1), make_request(1, [*prompt(40), 1], 1))
    simulation.submit(make_request(2, prompt(5, 200), 4))
    assert first(simulation).held == "budget"
    waits = {step.held for step in simulation.facts}
    while simulation.step():
        waits.add(simulation.facts[-1].held)
    assert waits <= {"budget", "prefix", None}


def test_in_the_background_somebody_waits_for_all_others() -> None:
    simulation = Simulation(100, config=config(8, 32))
    simulation.submit(make_request(0, prompt(8), 6), make_request(1, prompt(8, 40), 2, priority=BACKGROUND_PRIORITY))
    assert first(simulation).held == "background"


def test_nobody_waits_once_all_are_in() -> None:
    simulation = Simulation(100)
    simulation.submit(*(make_request(n, prompt(4, 10 * n), 3) for n in range(4)))
    assert first(simulation).held is None


def test_what_was_in_the_way_of_a_plan_that_was_not_made_is_forgotten() -> None:
    simulation = Simulation(10, config=config(2, 20, max_outstanding=2), prefix_caching=False)
    lengths = (30, 20, 8)
    simulation.submit(*(make_request(index, prompt(length, 100 * index), 1) for index, length in enumerate(lengths)))
    for _ in range(2):
        simulation.plan()
    simulation.commit()
    assert simulation.plan() is None, "the second waits for the first one's blocks"
    simulation.commit()
    simulation.plan()
    simulation.commit()
    assert [facts.held for facts in simulation.facts] == ["budget", "blocks", "budget"]
    simulation.run()
