"""How many sequences run at a time, where tokens are to follow one another within a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.config import CacheConfig
from penstock.core.plan import RowPlan, StepPlan
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.pace import GROWTH, LEAST_ROWS, Rows
from penstock.simulation.loop import one_token_each, play
from support.made_up_model import kv_spec
from support.simulation import Simulation, config, make_request, prompt


def decodes(rows: int) -> StepPlan:
    """A plan in which nothing but decodes is computed."""
    return StepPlan(0, tuple(RowPlan(number, 9, 1, [], None, (), ()) for number in range(rows)))


def seconds(fixed: float, each: float, plan: StepPlan) -> float:
    """Of a step: as much for each token."""
    return fixed + each * plan.num_tokens


def test_without_a_target_there_is_no_bound() -> None:
    rows = Rows(None)
    rows.measured(4, 4, 100.0)
    assert rows.most(256) == 256


def test_a_batch_grows_no_faster_than_what_was_measured() -> None:
    rows = Rows(1.0)
    assert rows.most(256) == LEAST_ROWS, "nothing is known yet"
    for size in (1, 2, 3, 8):
        for _ in range(20):
            rows.measured(size, size, seconds(0.01, 0.0001, decodes(size)))
        assert rows.most(256) == max(LEAST_ROWS, GROWTH * size)


def test_steps_that_were_played_together_count_like_those_one_by_one() -> None:
    together, apart = Rows(1.0), Rows(1.0)
    for size, steps, more in ((4, 50, 0.0), (8, 200, 0.0), (3, 5, 0.1), (7, 2, 0.0)):
        taken = seconds(0.4, 0.04, decodes(size)) + more
        together.measured(size, size, taken, steps)
        for _ in range(steps):
            apart.measured(size, size, taken)
        assert together.most(256) == apart.most(256)
        assert size != 8 or together.most(256) == int((1.0 - 0.4) / 0.04)


def settled(fixed: float, each: float) -> list[int]:
    """Rows of the steps of a long run, in which there is always somebody who waits."""
    limits = config(256, 1024, target_itl=0.1, bound_batch=True)
    scheduler = build_scheduler(limits, CacheConfig(kv_spec(16), 4000))
    found: list[int] = []

    def come(number: int) -> None:
        for other in range(4 if number < 200 else 0):
            scheduler.add(make_request(4 * number + other, prompt(2, 3 * number), 20 + number % 20))

    come(0)
    for step in play(scheduler, [], lambda plan: one_token_each(plan, seconds(fixed, each, plan), token=1)):
        found.append(scheduler.facts.rows)
        if scheduler.facts.held is None and step.plan.number > 200:
            break
        come(step.plan.number + 1)
    return found


@pytest.mark.parametrize(("fixed", "each", "fitting"), [(0.02, 0.005, 16), (0.0, 0.01, 10), (0.05, 0.001, 50)])
def test_a_batch_settles_where_steps_take_the_target(fixed: float, each: float, fitting: int) -> None:
    late = settled(fixed, each)[60:]
    assert sum(late) / len(late) == pytest.approx(fitting, rel=0.15)
    assert max(late) <= 1.25 * fitting


def test_where_no_batch_is_fast_enough_rows_that_cost_little_are_let_in() -> None:
    late = settled(0.2, 0.001)[60:]
    assert sum(late) / len(late) == pytest.approx(50, rel=0.15)


@given(
    st.floats(0.001, 10.0),
    st.lists(st.tuples(st.integers(1, 256), st.floats(0.0, 1e4)), max_size=30),
    st.integers(1, 256),
)
def test_whatever_was_measured_somebody_runs(target: float, steps: list[tuple[int, float]], limit: int) -> None:
    rows = Rows(target)
    for size, taken in steps:
        rows.measured(size, size, taken)
    assert min(limit, LEAST_ROWS) <= rows.most(limit) <= limit


def test_nobody_is_preempted_for_one_who_does_not_come_in_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(200, config=config(8, 64))
    urgent = [make_request(number, prompt(4, 10 * number), 30) for number in range(4)]
    later = [make_request(number, prompt(4, 10 * number), 30, priority=5) for number in range(4, 6)]
    simulation.submit(*urgent, *later)
    assert simulation.step()
    # Steps have become slow: of those that run, there are now too many even without the others.
    monkeypatch.setattr(simulation.scheduler._rows, "most", lambda limit: 3)
    simulation.submit(make_request(6, prompt(4, 90), 2))
    for _ in range(5):
        assert simulation.step()
    assert [step.preempted for step in simulation.facts if step.preempted] == []
    # With one place more than the urgent ones have, whoever matters least makes it.
    monkeypatch.setattr(simulation.scheduler._rows, "most", lambda limit: 6)
    assert simulation.step()
    assert [step.preempted for step in simulation.facts if step.preempted] == [[5]]
