"""What numbers of replicas are tried on, and measured by."""

import pytest
from autoscaling import HOUR, MOST_REVERSALS, PEAK_AT, PEAK_SECONDS, calmed, closed, sending
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.lists(st.integers(1, 50), min_size=1, max_size=200)


@given(NUMBERS, st.integers(0, 30))
def test_what_is_kept_is_never_less_than_what_is_wanted(wanted: list[int], minutes: int) -> None:
    kept = closed(wanted, minutes)
    assert all(one >= other for one, other in zip(kept, wanted, strict=True)) and max(kept) == max(wanted)
    assert closed(kept, minutes) == kept


@given(NUMBERS)
def test_a_calm_number_seldom_turns(wanted: list[int]) -> None:
    kept = calmed(wanted)
    steps = [after > before for before, after in zip(kept, kept[1:], strict=False) if after != before]
    turns = sum(one != other for one, other in zip(steps, steps[1:], strict=False))
    assert turns <= MOST_REVERSALS * len(wanted) / 60


def test_a_day_has_its_peak_and_else_sends_as_much_as_the_groups_are() -> None:
    day = [sending(at, 1.0, 300.0) for at in range(0, int(24 * HOUR), 60)]
    assert sum(day) / len(day) == pytest.approx(1.0) and max(day) / min(day) == pytest.approx(1.7 / 0.3, rel=0.01)
    inside = PEAK_AT + PEAK_SECONDS / 2
    assert sending(inside, 10.0, 300.0) == pytest.approx(10 * sending(inside, 1.0, 300.0))
    assert sending(PEAK_AT + 150, 10.0, 300.0) == pytest.approx(5.5 * sending(PEAK_AT + 150, 1.0, 0.0))
    assert sending(PEAK_AT - 1, 10.0, 0.0) == sending(PEAK_AT - 1, 1.0, 0.0)
    assert sending(PEAK_AT + 1, 10.0, 0.0) == 10 * sending(PEAK_AT + 1, 1.0, 0.0)
