"""After how long a request is sent once more."""

import pytest

from penstock.routing.hedging import LEAST, MOST, Hedging


def test_nothing_is_sent_twice_unless_asked_for() -> None:
    hedging = Hedging(0.0)
    for _ in range(1000):
        hedging.began(1.0)
    assert hedging.seconds is None


@pytest.mark.parametrize(("part", "seconds"), [(0.05, 0.96), (0.1, 0.91), (0.5, 0.51)])
def test_it_is_when_all_but_a_part_of_answers_have_begun(part: float, seconds: float) -> None:
    hedging = Hedging(part)
    for number in range(LEAST - 1):
        hedging.began((number + 1) / LEAST)
        assert hedging.seconds is None
    hedging.began(1.0)
    assert hedging.seconds == pytest.approx(seconds)


def test_what_was_long_ago_is_forgotten() -> None:
    hedging = Hedging(0.05)
    for _ in range(LEAST):
        hedging.began(9.0)
    assert hedging.seconds == 9.0
    for _ in range(MOST):
        hedging.began(0.1)
    assert hedging.seconds == 0.1


@pytest.mark.parametrize(
    ("part", "requests", "twice"), [(0.1, 9, 0), (0.1, 10, 1), (0.1, 25, 2), (0.5, 7, 3), (0.0, 99, 0)]
)
def test_no_more_are_sent_twice_than_the_part(part: float, requests: int, twice: int) -> None:
    hedging = Hedging(part)
    for _ in range(requests):
        hedging.sent()
    assert sum(hedging.take() for _ in range(100)) == twice


def test_what_is_saved_up_is_bounded() -> None:
    hedging = Hedging(0.5)
    for _ in range(1000):
        hedging.sent()
    assert sum(hedging.take() for _ in range(100)) == 10
