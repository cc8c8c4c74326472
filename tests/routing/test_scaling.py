"""Closed forms for what a number of replicas makes of a stream of requests."""

from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.scaling import MISSED, MOST_USED, Stream, Targets, answered, needed, work_of
from penstock.routing.speed import Speed

SPEED = Speed(prefill=10_000.0, decode=0.01, row=0.0001)
# A request takes 0.1 s of a replica for its prompt, and 0.01 s for its output.
STREAM = Stream(rate=10.0, prompt=1000.0, output=100.0, context=0.0)


def test_the_work_of_a_request_is_its_prompt_and_its_rows() -> None:
    assert work_of(SPEED, 1000.0, 100.0, 0.0) == pytest.approx(0.11)
    seen = msgspec.structs.replace(SPEED, token=1e-7)
    assert work_of(seen, 1000.0, 100.0, 2000.0) == pytest.approx(0.11 + 100 * 2000 * 1e-7)


def test_tokens_come_slower_the_more_replicas_have_to_do() -> None:
    two, four = (answered(STREAM, SPEED, count, Targets(1.0)) for count in (2, 4))
    assert two.used == pytest.approx(0.55) and two.tpot == pytest.approx(0.01 / 0.45)
    assert four.used == pytest.approx(0.275) and four.tpot == pytest.approx(0.01 / 0.725)
    assert two.missed > four.missed
    assert answered(STREAM, SPEED, 1, Targets(1.0)).tpot == inf and answered(STREAM, SPEED, 0, Targets()).missed == 1.0


def test_without_targets_replicas_are_not_filled_to_the_brim() -> None:
    assert needed(STREAM, SPEED, Targets()) == 2
    assert needed(msgspec.structs.replace(STREAM, rate=17.0), SPEED, Targets()) == 3 > 17.0 * 0.11 / MOST_USED
    assert needed(msgspec.structs.replace(STREAM, rate=0.0), SPEED, Targets(1.0)) == 0


def test_each_target_asks_for_more() -> None:
    # 0.01 s a token where idle: 0.02 s leave half of a replica to requests.
    assert needed(STREAM, SPEED, Targets(tpot=0.02)) == 3
    # One that not even an idle replica reaches is left out.
    assert needed(STREAM, SPEED, Targets(tpot=0.005)) == needed(STREAM, SPEED, Targets())
    assert needed(STREAM, SPEED, Targets(ttft=0.3)) > needed(STREAM, SPEED, Targets(ttft=3.0))


@given(st.floats(0.01, 1000.0), st.floats(1.0, 5000.0), st.floats(1.0, 500.0), st.floats(0.2, 20.0))
def test_the_number_is_the_least_that_is_enough(rate: float, prompt: float, output: float, ttft: float) -> None:
    stream, targets = Stream(rate, prompt, output, 0.0), Targets(ttft)
    count = needed(stream, SPEED, targets)
    there = answered(stream, SPEED, count, targets)
    assert there.missed <= MISSED and there.used <= MOST_USED + 1e-9
    if count > 1:
        fewer = answered(stream, SPEED, count - 1, targets)
        assert fewer.missed > MISSED or fewer.used > MOST_USED - 1e-9
    assert needed(msgspec.structs.replace(stream, rate=rate * 1.5), SPEED, targets) >= count
