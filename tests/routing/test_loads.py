"""Load is counted when a request is sent, and released on every way out."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.loads import Loads, Sent


def test_a_request_counts_as_what_it_still_needs() -> None:
    loads = Loads(2)
    one, other = loads.sent(1, 100, 64), loads.sent(1, 10)
    assert (loads.requests, loads.reading, loads.uncached, loads.context) == ([0, 2], [0, 2], [0, 46], [0, 0])
    loads.answering(one)
    assert (loads.requests, loads.reading, loads.uncached, loads.context) == ([0, 2], [0, 1], [0, 10], [0, 100])
    loads.over(other)
    assert (loads.requests, loads.reading, loads.uncached, loads.context) == ([0, 1], [0, 0], [0, 0], [0, 100])
    loads.over(one)
    assert (loads.requests, loads.reading, loads.uncached, loads.context) == ([0, 0], [0, 0], [0, 0], [0, 0])


def test_what_is_in_the_background_takes_no_room_from_others() -> None:
    loads = Loads(1)
    loads.most[0] = 2
    lines = [loads.sent(0, 10) for _ in range(5)]
    for line in lines:
        loads.in_background(line)
    assert loads.requests == [5] and loads.has_room(0)
    others = [loads.sent(0, 10) for _ in range(2)]
    assert not loads.has_room(0)
    for line in (*lines, *lines):
        loads.over(line)
    assert loads.background == [0] and not loads.has_room(0)
    loads.over(others[0])
    assert loads.has_room(0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 500), st.integers(0, 600)), max_size=8),
    st.lists(st.tuples(st.sampled_from(("answering", "over")), st.integers(0, 7)), max_size=40),
)
def test_in_whatever_order_things_are_told(sent: list[tuple[int, int, int]], told: list[tuple[str, int]]) -> None:
    loads = Loads(3)
    each = [loads.sent(*one) for one in sent]
    for what, number in told:
        if number < len(each):
            getattr(loads, what)(each[number])
            _agree(loads, each)
    for one in each:
        loads.over(one)
    assert loads.requests == loads.reading == loads.uncached == loads.context == [0, 0, 0]


def _agree(loads: Loads, each: list[Sent]) -> None:
    for place in range(3):
        there = [one for one in each if one.replica == place and one.stage != "over"]
        reading = [one for one in there if one.stage == "reading"]
        assert loads.requests[place] == len(there) and loads.reading[place] == len(reading)
        assert loads.uncached[place] == sum(one.uncached for one in reading)
        assert loads.context[place] == sum(one.tokens for one in there if one.stage == "answering")
