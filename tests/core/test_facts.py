"""Sums of facts."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.facts import WAITS, StepFacts, StepTotals

SECONDS = st.floats(0, 10)
COUNT = st.integers(0, 1000)
STEPS = st.builds(
    StepFacts,
    began=SECONDS,
    schedule=SECONDS,
    execute=SECONDS,
    sample=SECONDS,
    send=SECONDS,
    cpu_wait=SECONDS,
    budget=COUNT,
    rows=COUNT,
    decodes=COUNT,
    chunk_tokens=COUNT,
    sampled=COUNT,
    context=COUNT,
    held=st.sampled_from([None, *WAITS]),
    preempted=st.lists(COUNT, max_size=3),
    swapped_out=COUNT,
    swapped_in=COUNT,
    not_swapped=COUNT,
)
FIELDS = [name for name in StepTotals.__struct_fields__ if name != "held"]


def total(steps: list[StepFacts], start: StepTotals | None = None) -> StepTotals:
    """The sums of steps, each with the same work."""
    totals = start or StepTotals()
    for step in steps:
        totals = totals.add(step, (7, 9))
    return totals


@given(st.lists(STEPS, max_size=6), st.lists(STEPS, max_size=6))
def test_a_difference_is_what_happened_in_between(before: list[StepFacts], after: list[StepFacts]) -> None:
    earlier = total(before)
    found, expected = total(after, earlier).since(earlier), total(after)
    for name in FIELDS:
        assert abs(getattr(found, name) - getattr(expected, name)) < 1e-6, name
    assert all(abs(a - b) < 1e-6 for a, b in zip(found.held, expected.held, strict=True))


@given(st.lists(STEPS, max_size=8))
def test_totals_are_sums(steps: list[StepFacts]) -> None:
    totals = total(steps)
    assert totals.steps == len(steps)
    assert totals.rows == sum(step.rows for step in steps)
    assert (totals.bytes, totals.operations) == (7 * len(steps), 9 * len(steps))
    assert totals.preemptions == sum(len(step.preempted) for step in steps)
    for name in ("swapped_out", "swapped_in", "not_swapped"):
        assert getattr(totals, name) == sum(getattr(step, name) for step in steps)
    assert totals.chunk_steps == sum(step.chunk_tokens > 0 for step in steps)
    assert abs(totals.seconds - sum(step.seconds + step.send for step in steps)) < 1e-6
    for wait, seconds in totals.waited_for().items():
        held = sum(step.seconds + step.send for step in steps if step.held == wait)
        assert abs(seconds - held) < 1e-6
