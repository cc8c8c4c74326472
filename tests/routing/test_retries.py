"""Retries are a part of requests, on a made-up clock."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.retries import RetryBudget


def test_a_few_may_be_made_whatever_comes() -> None:
    budget = RetryBudget()
    assert [budget.retry(0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert [budget.retry(2.0) for _ in range(3)] == [True, True, False]


def test_when_everything_fails_a_fifth_is_sent_again() -> None:
    budget, sent, again = RetryBudget(), 0, 0
    for number in range(100_000):
        now = number / 1000
        budget.request(now)
        sent += 1
        again += budget.retry(now)
    # And the reserve: one a second.
    assert 0.2 * sent <= again <= 0.2 * sent + 10 + 100


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50), st.integers(0, 50)), max_size=40))
def test_what_was_not_used_is_not_kept(moments: list[tuple[float, int, int]]) -> None:
    budget, now, requests, again = RetryBudget(), 0.0, 0, 0
    for seconds, coming, wanted in moments:
        now += seconds
        for _ in range(coming):
            budget.request(now)
        requests += coming
        again += sum(budget.retry(now) for _ in range(wanted))
        assert 0 <= budget.balance <= budget.reserve + budget.part * requests
        assert again <= 0.2 * requests + 10 + now + 1e-6
