"""How many replicas would have been enough for what came: against a queue that is played second by second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.hindsight import Came, enough, late_part, rate_of, rates, rise


def came(*prompts: float, seconds: float = 5.0, outputs: float = 0.0) -> list[Came]:
    """One request in each interval, whose prompt takes that much of a replica."""
    return [
        Came(seconds * number, seconds, 1 if each else 0, each, outputs if each else 0.0)
        for number, each in enumerate(prompts, 1)
    ]


INTERVALS = st.lists(
    st.tuples(st.integers(0, 20), st.floats(0.01, 2.0), st.floats(0.0, 0.5)).map(
        lambda drawn: Came(0.0, 5.0, drawn[0], drawn[0] * drawn[1], drawn[0] * drawn[2])
    ),
    min_size=1,
    max_size=30,
)


def test_the_rate_is_of_prompts_and_outputs() -> None:
    assert rate_of(came(5.0, 0.0, outputs=5.0)) == pytest.approx(1.0)
    assert rate_of([]) == 0.0


def test_a_request_waits_for_those_before_it_and_not_for_itself() -> None:
    alone = came(30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert late_part(alone, 1, 0.5) == 0.0 and enough(alone, 0.5, 0.0) == 1
    # 25 s of the first one are left when the second comes, half an interval before it ends.
    followed = came(30.0, 1.0, *[0.0] * 8)
    assert late_part(followed, 1, 20.0) == 0.5 and late_part(followed, 1, 25.0) == 0.0
    assert enough(followed, 20.0, 0.0) == 2 and enough(followed, 20.0, 0.5) == 1


def test_outputs_leave_less_to_prompts() -> None:
    calm, busy = came(4.0, 4.0, 4.0), came(4.0, 4.0, 4.0, outputs=3.0)
    assert enough(calm, 1.0, 0.0) == 1
    assert late_part(busy, 1, 1.0) > 0.0 and enough(busy, 1.0, 0.0) == 2
    assert late_part(came(1.0, outputs=6.0), 1, 100.0) == 1.0


def test_nothing_needs_none() -> None:
    assert enough([], 1.0, 0.0) == enough(came(0.0, 0.0), 1.0, 0.0) == 0
    assert late_part([], 1, 1.0) == 0.0


@given(INTERVALS, st.floats(0.1, 10.0), st.floats(0.0, 0.2))
def test_it_is_the_fewest(intervals: list[Came], most: float, missed: float) -> None:
    count = enough(intervals, most, missed)
    if not count:
        assert not any(each.requests for each in intervals)
        return
    assert late_part(intervals, count, most) <= missed
    if count > 1:
        assert late_part(intervals, count - 1, most) > missed or count - 1 < rate_of(intervals)


@given(INTERVALS, st.integers(1, 20), st.floats(0.1, 10.0))
def test_it_is_the_queue_played_in_small_steps(intervals: list[Came], replicas: int, most: float) -> None:
    """What waits at the end of each interval is what a queue has that is served a thousandth at a time."""
    outputs = sum(each.outputs for each in intervals) / sum(each.seconds for each in intervals)
    free, waiting, late, requests = replicas - outputs, 0.0, 0, 0
    if free <= 0:
        return
    for each in intervals:
        own = each.prompts / each.requests if each.requests else 0.0
        halfway = max(0.0, waiting + (each.prompts - own - free * each.seconds) / 2)
        late += each.requests if halfway > most * free else 0
        requests += each.requests
        for _ in range(1000):
            waiting = max(0.0, waiting + (each.prompts - free * each.seconds) / 1000)
    assert late_part(intervals, replicas, most) == pytest.approx(late / requests if requests else 0.0)


def test_rates_are_of_whole_parts_the_newest_first() -> None:
    assert rates(came(5.0, 5.0, 10.0, 10.0, 20.0, 20.0), 10.0) == pytest.approx([4.0, 2.0, 1.0])
    # What is left over is too short to say anything.
    assert rates(came(99.0, 10.0, 10.0), 10.0) == pytest.approx([2.0])


def test_a_rise_is_more_than_ever() -> None:
    assert rise(came(5.0, 5.0, 5.0, 5.0, 10.0, 10.0), 10.0, 1.5) == pytest.approx(0.1)
    # There was as much before.
    assert rise(came(10.0, 10.0, 5.0, 5.0, 10.0, 10.0), 10.0, 1.5) == 0.0
    # Nothing is known of what is usual.
    assert rise(came(10.0, 10.0), 10.0, 1.5) == rise(came(0.0, 0.0, 9.0, 9.0), 10.0, 1.5) == rise([], 10.0, 1.5) == 0.0
