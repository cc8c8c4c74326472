"""How many tokens a step has follows from how long those before it took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.plan import RowPlan, StepPlan
from penstock.scheduler.pace import ENOUGH_PROMPT, LEAST_PROMPT, LEAST_SHARED, SHARED_WORTH, STRETCH, Pace
from support.simulation import Simulation, config, make_request, prompt

MOST = 4096


def step(tokens: int, decodes: int = 0) -> StepPlan:
    """A plan with a prompt of so many tokens, and rows that decode."""
    rows = [RowPlan(0, 0, tokens, [], None, (), ())] if tokens else []
    rows += [RowPlan(1 + number, 9, 1, [], None, (), ()) for number in range(decodes)]
    return StepPlan(0, tuple(rows))


def settled(pace: Pace, fixed: float, each: float, steps: int = 60) -> list[int]:
    """Budgets of steps that cost so much, one after another."""
    budgets = []
    for _ in range(steps):
        budgets.append(pace.budget(MOST, 0))
        pace.measured(step(budgets[-1]), fixed + each * budgets[-1])
    return budgets


def test_without_a_target_a_step_has_the_whole_budget() -> None:
    pace = Pace(None)
    assert set(settled(pace, 0.0, 1.0)) == {MOST}


def test_the_first_step_is_short() -> None:
    assert Pace(0.1).budget(MOST, 0) == LEAST_PROMPT
    assert Pace(0.1).budget(MOST, 30) == LEAST_PROMPT + 30
    assert Pace(0.1).budget(48, 30) == 48


@pytest.mark.parametrize(("fixed", "each"), [(0.0, 0.0001), (0.01, 0.0001), (0.05, 0.0005)])
def test_steps_settle_at_the_target_and_are_never_beyond_it(fixed: float, each: float) -> None:
    budgets = settled(Pace(0.1), fixed, each)
    least = fixed + each * LEAST_PROMPT
    assert all(fixed + each * budget <= max(0.1, least) + 1e-9 for budget in budgets)
    assert fixed + each * budgets[-1] == pytest.approx(max(0.1, least), rel=0.1)


def test_a_slow_machine_has_steps_that_are_worth_their_while() -> None:
    assert set(settled(Pace(0.1), 0.1, 0.01)) == {LEAST_PROMPT}


@pytest.mark.parametrize(
    ("target", "tokens"),
    # What the target leaves to a prompt; what takes half as long as the decodes, where it leaves less.
    [(1.0, 8 + 26), (0.2, 8 + 2), (0.01, 8 + 2)],
)
def test_a_slow_machine_keeps_to_the_target_beside_decodes(target: float, tokens: int) -> None:
    """A step of 64 tokens takes two seconds there, and much less than the target without any."""
    pace = Pace(target)
    pace.measured(step(LEAST_PROMPT), 2.0)
    pace.measured(step(0, decodes=8), 0.13)
    assert pace.budget(MOST, 8) >= 8 + LEAST_PROMPT, "nobody knows yet what a prompt costs beside them"
    for _ in range(60):
        found = pace.budget(MOST, 8)
        pace.measured(step(found - 8, decodes=8), 0.13 + 0.033 * (found - 8))
    assert found == pytest.approx(tokens, abs=1)
    assert pace.budget(MOST, 0) == LEAST_PROMPT, "nobody waits"


def test_a_prompt_that_takes_ever_longer_keeps_to_the_target() -> None:
    """Its context grows. Steps of less than 64 tokens say how fast they are where there is room for no more."""
    pace = Pace(0.5)
    pace.measured(step(0, decodes=8), 0.6)
    for _ in range(9):
        pace.measured(step(0, decodes=8), 0.1)
    taken = []
    for number in range(150):
        tokens = pace.budget(MOST, 8)
        taken.append(0.1 + (0.0075 + 0.00005 * number) * (tokens - 8))
        pace.measured(step(tokens - 8, decodes=8), taken[-1])
    assert max(taken) <= 1.2 * 0.5 and min(taken[20:]) >= 0.8 * 0.5


def test_where_nothing_is_asked_for_a_prompt_makes_steps_little_longer() -> None:
    pace = Pace(0.1, asked=False)
    pace.measured(step(1024), 0.05)
    assert pace.budget(MOST, 8) == 2048, "nothing is known of steps that decode"
    pace.measured(step(0, decodes=8), 0.01)
    assert pace.budget(MOST, 8) == pytest.approx(STRETCH * 204.8, abs=1)
    # Nobody decodes, or somebody said how long a step may take.
    assert pace.budget(MOST, 0) == 2048
    assert pace.budget(MOST, 0, shared=True) == pytest.approx(STRETCH * 204.8, abs=1), "another tenant may come"
    asked = Pace(0.1)
    asked.measured(step(1024), 0.05)
    asked.measured(step(0, decodes=8), 0.01)
    assert asked.budget(MOST, 8) == 2048
    # However fast decodes are, a step has some tokens of prompts.
    for _ in range(100):
        pace.measured(step(0, decodes=8), 0.0001)
    assert pace.budget(MOST, 8) == ENOUGH_PROMPT + 8


def test_a_shared_step_is_as_short_as_is_worth_it() -> None:
    pace = Pace(0.1)
    assert pace.least_shared() == LEAST_PROMPT, "nothing is known"
    pace.measured(step(64), 0.0064)
    assert pace.least_shared() == LEAST_PROMPT, "nothing is known of steps that decode"
    for decoding, tokens in ((0.0001, LEAST_SHARED), (0.0015, SHARED_WORTH * 15), (0.1, LEAST_PROMPT)):
        for _ in range(200):
            pace.measured(step(0, decodes=8), decoding)
        assert pace.least_shared() == pytest.approx(tokens, abs=1)


def test_a_step_that_was_held_up_is_forgotten() -> None:
    pace = Pace(0.1)
    before = settled(pace, 0.0, 0.0001)[-1]
    pace.measured(step(before), 3.0)
    assert pace.budget(MOST, 0) < before / 2
    assert settled(pace, 0.0, 0.0001)[-1] == pytest.approx(before, rel=0.1)


def test_decodes_and_few_tokens_say_nothing_of_prompts() -> None:
    pace = Pace(0.1)
    pace.measured(step(256), 0.05)
    before = pace.budget(MOST, 0)
    pace.measured(step(0, decodes=200), 5.0)
    pace.measured(step(LEAST_SHARED - 1), 5.0)
    # Nor does a step whose time is not known.
    pace.measured(step(256), 0.0)
    assert pace.budget(MOST, 0) == before == 512


@given(
    st.floats(0.001, 10.0),
    st.lists(st.tuples(st.integers(1, MOST), st.integers(0, 256), st.floats(0.0, 1e4))),
    st.integers(1, MOST),
    st.integers(0, 256),
)
def test_whatever_was_measured_there_is_room_for_decodes_and_a_prompt(
    target: float, steps: list[tuple[int, int, float]], most: int, decodes: int
) -> None:
    pace = Pace(target)
    for tokens, rows, seconds in steps:
        pace.measured(step(tokens, rows), seconds)
    assert min(most, decodes + 1) <= pace.budget(most, decodes) <= most
    assert min(most, LEAST_PROMPT) <= pace.budget(most, 0)


def test_prompts_are_cut_so_that_steps_take_the_target() -> None:
    simulation = Simulation(2000, config=config(8, 2048, target_itl=0.1), seconds=lambda plan: plan.num_tokens / 2000)
    simulation.submit(*(make_request(n, prompt(1000, 2000 * n), 3) for n in range(3)))
    simulation.run()
    counts = [plan.num_tokens for plan in simulation.plans]
    assert counts[0] == LEAST_PROMPT
    assert all(198 <= count <= 200 for count in counts[1:14])
    assert max(counts) == 200


@pytest.mark.parametrize(
    ("first", "least", "most"),
    # While nothing is known of decodes, an eighth of the target; then what is worth a step that takes 1 ms with one.
    [(prompt(2), 98, 100), (prompt(1), LEAST_SHARED, LEAST_SHARED)],
)
def test_where_there_were_several_tenants_steps_are_short(first: list[int], least: int, most: int) -> None:
    simulation = Simulation(2000, config=config(8, 4096, target_itl=0.8), seconds=lambda plan: plan.num_tokens / 1000)
    simulation.submit(make_request(0, first, 1, tenant="quiet"))
    simulation.run()
    simulation.submit(make_request(1, prompt(3000), 1, tenant="noisy"))
    simulation.run()
    assert all(least <= plan.num_tokens <= most for plan in simulation.plans[3:-1])
