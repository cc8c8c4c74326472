"""Replicas that fail are left out and come back, on a made-up clock."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.outliers import Outliers, Rules

ALL = [0, 1, 2, 3]


def failing(outliers: Outliers, place: int, now: float, times: int = 3) -> None:
    for _ in range(times):
        outliers.failed(place, now)


def test_one_that_fails_again_and_again_is_left_out_for_longer_each_time() -> None:
    outliers = Outliers(4)
    failing(outliers, 1, 0.0, 2)
    assert outliers.allowed(ALL, 0.0) == ALL
    outliers.failed(1, 0.0)
    now = 0.0
    for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        assert outliers.allowed(ALL, now + seconds - 0.01) == [0, 2, 3]
        now += seconds
        assert outliers.allowed(ALL, now) == ALL
        outliers.tries(1, now)
        # Only one request tries it.
        assert outliers.allowed(ALL, now + 100) == [0, 2, 3]
        outliers.failed(1, now)
    now += 30.0
    outliers.tries(1, now)
    outliers.succeeded(1)
    assert outliers.allowed(ALL, now) == ALL and outliers.why(1, now) is None
    failing(outliers, 1, now, 2)
    assert outliers.allowed(ALL, now) == ALL


def test_a_success_makes_up_for_failures() -> None:
    outliers = Outliers(4)
    for _ in range(10):
        failing(outliers, 0, 0.0, 2)
        outliers.succeeded(0)
    assert outliers.allowed(ALL, 0.0) == ALL


def test_it_says_why() -> None:
    outliers = Outliers(4)
    failing(outliers, 2, 10.0)
    assert outliers.why(2, 10.25) == "it failed, and is tried again in 0.8 s"
    outliers.tries(2, 11.0)
    assert outliers.why(2, 11.0) == "it failed, and a request tries whether it still does"
    assert outliers.why(0, 10.0) is None


def test_those_who_fail_do_not_take_all_others_with_them() -> None:
    outliers = Outliers(4)
    for place in ALL:
        failing(outliers, place, place / 10)
    # Half of them are tried all the same: those that have waited for longest.
    assert outliers.allowed(ALL, 0.5) == [0, 1]
    assert outliers.allowed([2, 3], 0.5) == [2, 3]
    alone = Outliers(1)
    failing(alone, 0, 0.0)
    assert alone.allowed([0], 0.0) == [0]


STEPS = st.lists(
    st.tuples(st.sampled_from(("failed", "succeeded", "tries")), st.integers(0, 4), st.floats(0.0, 5.0)), max_size=60
)


@given(STEPS, st.integers(1, 5))
def test_whatever_happens_somebody_is_left(steps: list[tuple[str, int, float]], replicas: int) -> None:
    outliers, now = Outliers(replicas, Rules(failures=2)), 0.0
    for what, place, seconds in steps:
        now += seconds
        if place >= replicas:
            continue
        if what == "succeeded":
            outliers.succeeded(place)
        else:
            getattr(outliers, what)(place, now)
        everyone = list(range(replicas))
        assert len(outliers.allowed(everyone, now)) >= replicas - replicas // 2
        for each in everyone:
            assert outliers.allowed([each], now) == [each]
            assert (outliers.why(each, now) is None) == (each in outliers.allowed(everyone, now))
