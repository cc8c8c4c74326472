"""Replicas that fail are left alone for a time, and trouble does not multiply requests."""

import pytest

from gateway.conftest import Start
from gateway.test_told import line
from penstock.gateway.options import RetryOptions
from support.scripted_http import CLOSE, Received, Step, answer, stream, whole_answer


def closing(_request: Received) -> list[Step]:
    return [CLOSE]


@pytest.mark.usefixtures("standing")
def test_one_that_fails_again_and_again_is_left_out(gateway: Start) -> None:
    started = gateway(closing, whole_answer)
    for _ in range(12):
        assert started.complete(max_tokens=1).status_code == 200
    # The time after which it would be tried again does not come.
    assert started.dispatch.figures.failures[0] == 3 and started.asked[1] == 12
    assert started.dispatch.figures.retries["sent"] == started.dispatch.figures.failures[0]
    started.wait_until_empty()


def test_one_that_is_busy_is_not(gateway: Start) -> None:
    started = gateway(lambda _request: answer(b"{}", 503), whole_answer)
    for _ in range(12):
        assert started.complete(max_tokens=1).status_code == 200
    assert started.asked[0] >= 6 and started.asked[1] == 12
    assert not started.dispatch.outliers.out(0.0)


@pytest.mark.usefixtures("standing")
def test_retries_are_a_part_of_all_requests(gateway: Start) -> None:
    """However many replicas there are to try."""
    busy = [lambda _request: answer(b'{"error": {"message": "no"}}', 503)] * 3
    started = gateway(*busy, retries=RetryOptions(most=2, part=0.1))
    for _ in range(100):
        assert started.complete(max_tokens=1).status_code == 503
    # A tenth of the requests, and the reserve, of which nothing comes back.
    assert sum(started.asked) <= 120
    assert started.dispatch.figures.retries["over_budget"] >= 80
    started.wait_until_empty()


def test_one_that_has_begun_anew_since_it_broke_is_as_good_as_another(gateway: Start) -> None:
    known: list[str] = []

    def breaking_once(request: Received) -> list[Step]:
        if len(started.servers[0].asked) > 1:
            return list(whole_answer(request))
        known.append("it breaks")
        told = started.replicas.all[0]
        return [lambda: told.told is not None and told.told.instance == "two", CLOSE]

    def telling(_request: Received) -> list[Step]:
        states: list[Step] = [line(models=["scripted"], instance="two"), 0.1]
        return stream(line(models=["scripted"]), lambda: bool(known), *states * 1000, kind="application/x-ndjson")

    started = gateway(breaking_once, closing, told=[telling], retries=RetryOptions(most=2, part=1.0))
    assert started.complete(max_tokens=1).status_code == 200
    # A connection that had been used may have been closed as the request was on its way: it is sent on a fresh one.
    assert started.asked[0] == 2 and started.asked[1] in (1, 2)
