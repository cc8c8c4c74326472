"""Whose turn it is: by priority, then by tenant as they were served, then by arrival."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.line import Line, Pace, Turn

ALL = {None}


def entered(*turns: Turn) -> Line:
    line = Line()
    for turn in turns:
        line.enter(turn, 0.0)
    return line


def served(line: Line, output: int = 0) -> list[int]:
    """Numbers, in turn; each ends at once."""
    found = []
    while (turn := line.first(ALL)) is not None:
        line.serve(turn, output, 0.0)
        line.end(turn, output)
        found.append(turn.number)
    return found


def test_higher_classes_come_first_and_then_those_who_came_first() -> None:
    line = entered(Turn(1, 5), Turn(2, 5, priority=1), Turn(3, 5, priority=-1), Turn(4, 5))
    assert len(line) == 4 and served(line) == [3, 1, 4, 2]
    assert line.unused and len(line) == 0


@given(seed=st.integers(0, 2**31))
def test_where_nothing_waits_a_turn_at_once_is_one_that_was_waited_for(seed: int) -> None:
    """Tenants have been served the same by both, as those that wait afterwards show."""
    draw = random.Random(seed)
    lines, running = (Line(), Line()), list[tuple[tuple[Turn, Turn], int]]()
    for number in range(draw.randint(1, 30)):
        tenant, tokens, priority = draw.choice("abc"), draw.choice((10, 1000)), draw.choice((0, 0, 1))
        both = tuple(Turn(number, tokens, None, tenant, priority=priority) for _ in lines)
        lines[0].enter(both[0], number)
        lines[0].serve(both[0], 100, number)
        lines[1].at_once(both[1], 100, number)
        running.append((both, draw.choice((0, 500))))
        if len(running) > 3:
            pair, output = running.pop(draw.randrange(len(running)))
            for line, turn in zip(lines, pair, strict=True):
                line.end(turn, output)
    for line in lines:
        for number in range(9):
            line.enter(Turn(100 + number, 50, None, "abc"[number % 3]), 100.0)
    assert served(lines[0]) == served(lines[1])
    for pair, output in running:
        for line, turn in zip(lines, pair, strict=True):
            line.end(turn, output)
    assert all(line.unused for line in lines)


@given(seed=st.integers(0, 2**31))
def test_tenants_with_requests_are_served_by_their_weights(seed: int) -> None:
    """However long their requests are: the difference stays below what a few of them cost."""
    draw = random.Random(seed)
    weights = {"a": 1.0, "b": 1.0, "c": 3.0}
    line, number, got, largest = Line(), 0, dict.fromkeys(weights, 0.0), 0.0

    def add(tenant: str) -> None:
        nonlocal number
        number += 1
        line.enter(Turn(number, draw.choice((10, 100, 1000)), None, tenant, weights[tenant]), 0.0)

    for tenant in weights:
        for _ in range(draw.randint(1, 5)):
            add(tenant)
    running: list[tuple[Turn, int]] = []
    for _ in range(300):
        turn = line.first(ALL)
        assert turn is not None
        # Each of them has always one that waits.
        add(turn.tenant)
        output = draw.choice((0, 50, 500))
        line.serve(turn, 100, 0.0)
        running.append((turn, output))
        if len(running) > 4:
            line.end(*running.pop(draw.randrange(len(running))))
        got[turn.tenant] += turn.cost(output)
        largest = max(largest, turn.cost(output), turn.cost(100))
    assert max(got.values()) - min(got.values()) <= 8 * largest
    for turn, output in running:
        line.end(turn, output)
    served(line)
    assert line.unused


def test_who_is_to_go_where_there_is_no_room() -> None:
    flood = [Turn(number, 5, None, "flood") for number in range(5)]
    line = entered(*flood, Turn(10, 5, None, "calm"))
    # One of the tenant with the most gives way to another tenant's, the last first; its own next one goes itself.
    assert line.worst(Turn(11, 5, None, "calm")) is flood[-1]
    another = Turn(12, 5, None, "flood")
    assert line.worst(another) is another
    # By weight it has less than its share.
    heavy = Turn(13, 5, None, "calm", weight=0.1)
    assert line.worst(heavy) is heavy
    # Whatever is of a lower class goes before, even of a tenant with little.
    low = Turn(14, 5, None, "calm", priority=3)
    line.enter(low, 0.0)
    assert line.worst(another) is low
    lower = Turn(15, 5, None, "new", priority=4)
    assert line.worst(lower) is lower
    assert Line().worst(another) is another


def test_how_many_come_before() -> None:
    flood = [Turn(number, 5, None, "flood") for number in range(9)]
    line = entered(*flood, Turn(10, 5, None, "calm"), Turn(11, 5, None, "flood", priority=-1))
    # One of its own, two of the flood's, and who is of a higher class.
    assert line.ahead(Turn(12, 5, None, "calm")) == 4
    assert line.ahead(Turn(12, 5, None, "flood")) == 9 + 1 + 1
    assert line.ahead(Turn(12, 5, None, "new", weight=2.0)) == 0.5 + 0.5 + 1
    assert line.ahead(Turn(12, 5, None, "new", priority=-2)) == 0
    turn = Turn(13, 5, None, "calm")
    line.enter(turn, 0.0)
    line.leave(turn, 0.0)
    assert line.ahead(Turn(12, 5, None, "calm")) == 4


def test_pace_is_measured_while_there_is_a_line() -> None:
    pace = Pace()
    assert pace.per_second(0.0) is None
    pace.look(0.0, waiting=True)
    for second in range(1, 41):
        pace.served()
        pace.look(second * 0.25, waiting=True)
    assert pace.per_second(10.0) == pytest.approx(4.0, rel=0.1)
    pace.look(10.0, waiting=False)
    assert pace.per_second(15.0) == pytest.approx(4.0, rel=0.1)
    # What was long ago says nothing of what is now, however bad it was.
    assert pace.per_second(70.0) is None
    pace.look(70.0, waiting=True)
    assert pace.per_second(70.0) is None


def test_a_wait_is_expected_from_how_fast_turns_come() -> None:
    line, now = Line(), 0.0
    turns = [Turn(number, 5, None, "flood") for number in range(60)]
    for turn in turns:
        line.enter(turn, now)
    assert line.wait(Turn(100, 5, None, "new"), now) is None and line.seconds(None, now) == 0
    for number in range(20):
        # Four a second, of which every other one is somebody's who never waits for long.
        now += 0.25
        line.serve(turns[number], 0, now)
        calm = Turn(200 + number, 5, None, "calm")
        line.enter(calm, now)
        now += 0.25
        line.serve(calm, 0, now)
    assert line.seconds(None, now) == pytest.approx(40 / 4, rel=0.1)
    assert line.wait(Turn(100, 5, None, "new"), now) == pytest.approx(2 / 4, rel=0.1)
    # Half of the turns are another's, although nobody waits now who would come before.
    assert line.wait(Turn(100, 5, None, "flood"), now) == pytest.approx(41 / 2, rel=0.1)
    # While nothing can have its turn, nothing is learnt.
    line.moves(None, now, moves=False)
    line.leave(turns[59], now + 5)
    line.moves(None, now + 5, moves=True)
    assert line.seconds(None, now + 5) == pytest.approx(39 / 4, rel=0.1)


def test_who_does_not_wait_says_nothing_of_how_fast_turns_come() -> None:
    line = Line()
    for number in range(100):
        turn = Turn(number, 5)
        line.enter(turn, number)
        line.serve(turn, 0, number)
        line.end(turn, 0)
    assert line.wait(Turn(100, 5), 100) is None


def test_where_nothing_says_how_long_an_answer_was_it_stays_charged_as_expected() -> None:
    line = Line()
    for number, tenant in enumerate(("a", "a", "b", "b")):
        line.enter(Turn(number, 5, None, tenant), 0.0)
    order = []
    for output in (None, 0, None, 0):
        turn = line.first(ALL)
        assert turn is not None
        line.serve(turn, 100, 0.0)
        line.end(turn, output)
        order.append(turn.tenant)
    assert order == ["a", "b", "b", "a"]


def test_of_a_tenants_requests_those_with_the_least_time_left_come_first() -> None:
    line = Line()
    for number, until in ((1, 30.0), (2, 10.0), (3, 30.0), (4, 20.0)):
        line.enter(Turn(number, 5), 0.0, until)
    order = []
    while (turn := line.first([None])) is not None:
        line.serve(turn, 1, 1.0)
        line.end(turn, 1)
        order.append(turn.number)
    assert order == [2, 4, 1, 3] and line.unused
