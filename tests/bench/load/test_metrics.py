"""The definitions, on hand-made timelines."""

import math
from array import array
from typing import Any

import pytest

from penstock.bench.load.arrivals import Arrivals, Closed, Open
from penstock.bench.load.metrics import distribution, in_flight, is_good, percentile, summarize
from penstock.bench.load.outcome import End, Outcome
from penstock.bench.load.run import Run
from penstock.configuration.slo import Slo

CLOSED = Closed(4)


def outcome(**given: Any) -> Outcome:
    """A request that was due at 1 s, sent at 1.5 s, and had 5 tokens from 2 s to 4 s, if nothing else is said."""
    usual: dict[str, Any] = {
        "number": 0, "end": End.OK, "scheduled": 1.0, "started": 1.5, "sent": 1.5, "first": 2.0, "last": 4.0,
        "ended": 4.25, "asked": 5, "input_tokens": 100, "cached_tokens": 10, "output_tokens": 5, "chunks": 5,
        "longest_gap": 0.5,
    }  # fmt: skip
    return Outcome(**(usual | given))


def run(*outcomes: Outcome, gaps: tuple[float, ...] = (), seconds: float = 10.0, arrivals: Arrivals = CLOSED) -> Run:
    return Run(arrivals, list(outcomes), array("f", gaps), seconds, 2.5)


def test_latencies_count_from_when_a_request_was_due() -> None:
    one = outcome()
    assert one.ttft == 1.0
    assert one.e2e == 3.0
    assert one.tpot == (3.0 - 1.0) / (5 - 1)
    assert one.e2e_per_token == 3.0 / 5
    assert one.lag == 0.5


def test_a_single_token_has_no_time_per_output_token() -> None:
    one = outcome(output_tokens=1, last=2.0, longest_gap=None)
    assert one.tpot is None
    assert one.ttft == one.e2e == 1.0


def test_tokens_of_several_choices_come_side_by_side() -> None:
    one = outcome(output_tokens=10, choices=2)
    assert one.tpot == (3.0 - 1.0) / (5 - 1)
    assert one.e2e_per_token == 3.0 / 5


def test_percentiles_are_values_that_occurred() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert [percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99)] == [50, 90, 95, 99]
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_a_distribution() -> None:
    found = distribution([3.0, 1.0, 2.0, 10.0])
    assert found is not None
    assert (found.count, found.mean, found.median, found.p90, found.max) == (4, 4.0, 2.0, 10.0, 10.0)
    assert distribution([]) is None


def test_rates_are_by_the_time_of_the_run() -> None:
    found = summarize(run(outcome(), outcome(output_tokens=15), gaps=(0.5, 0.25)), None)
    assert found.request_rate == 0.2
    assert found.output_token_rate == 2.0
    assert found.input_token_rate == 20.0
    assert (found.input_tokens, found.cached_tokens, found.output_tokens) == (200, 20, 20)
    assert found.cpu == 0.25
    assert found.itl is not None
    assert (found.itl.count, found.itl.mean) == (2, 0.375)
    # Two requests of 2.75 seconds each.
    assert found.in_flight == pytest.approx(0.55)
    assert found.most_in_flight == 2


def test_what_was_not_measured_is_null() -> None:
    failed = outcome(end=End.FAILED, kind="HTTP 503", message="busy", first=None, last=None, output_tokens=None)
    found = summarize(run(failed), None)
    assert (found.ttft, found.tpot, found.itl, found.e2e, found.e2e_per_token) == (None,) * 5
    assert (found.output_token_rate, found.output_tokens, found.good, found.goodput) == (None,) * 4
    assert (found.meets_slo, found.kept_up) == (None, None)
    assert summarize(run(seconds=0.0), None).request_rate is None


def test_cancelled_and_failed_requests_have_no_latencies() -> None:
    ends = [outcome(), outcome(end=End.CANCELLED, first=9.0), outcome(end=End.FAILED, kind="timeout", first=9.0)]
    found = summarize(run(*ends), Slo(ttft=1.0))
    assert (found.sent, found.succeeded, found.cancelled, found.failed) == (3, 1, 1, 1)
    assert found.ttft is not None
    assert (found.ttft.count, found.ttft.max) == (1, 1.0)


def test_goodput_counts_requests_that_meet_all_limits() -> None:
    late = outcome(first=3.0)
    slow = outcome(last=6.0, output_tokens=5)
    stuck = outcome(longest_gap=1.5)
    failed = outcome(end=End.FAILED, kind="timeout")
    every = (outcome(), late, slow, stuck, failed)
    limits = Slo(ttft=1.0, tpot=0.5, itl=1.0, e2e=3.0)
    assert [is_good(limits, one) for one in every] == [True, False, False, False, False]
    found = summarize(run(*every), limits)
    assert (found.good, found.goodput, found.token_goodput) == (1, 0.1, 0.5)
    assert is_good(Slo(tpot=0.1), outcome(output_tokens=1))


def test_a_rate_meets_the_limits_if_99_of_100_do() -> None:
    good, late = outcome(), outcome(first=3.5)
    assert summarize(run(*[good] * 99, late), Slo(ttft=1.0)).meets_slo is True
    assert summarize(run(*[good] * 98, late, late), Slo(ttft=1.0)).meets_slo is False


def test_a_failed_request_is_later_than_any_limit() -> None:
    good, failed = outcome(), outcome(end=End.FAILED, kind="HTTP 503", first=None, last=None)
    for limits in (Slo(ttft=math.inf), Slo(itl=5.0)):
        assert summarize(run(*[good] * 99, failed, gaps=(0.1,)), limits).meets_slo is True
        assert summarize(run(*[good] * 98, failed, failed, gaps=(0.1,)), limits).meets_slo is False
    assert summarize(run(failed), Slo(ttft=1.0)).meets_slo is False


def test_a_rate_that_is_not_kept_up_with_meets_nothing() -> None:
    # 10 come a second, 5 are served; each is within the limit as long as this lasts.
    coming = [outcome(scheduled=n / 10, started=n / 10, ended=n / 5 + 0.1, last=n / 5 + 0.1) for n in range(400)]
    limits = Slo(e2e=100.0)
    assert summarize(run(*coming, arrivals=Open(10.0)), limits).kept_up is False
    assert summarize(run(*coming, arrivals=Open(10.0)), limits).meets_slo is False
    assert summarize(run(*coming, arrivals=Closed(10)), limits).meets_slo is True


def test_requests_in_flight() -> None:
    found = in_flight(
        [outcome(started=0.0, ended=2.0), outcome(started=1.0, ended=3.0), outcome(started=2.0, ended=4.0)]
    )
    assert found == [(0.0, 1), (1.0, 2), (2.0, 1), (2.0, 2), (3.0, 1), (4.0, 0)]


def test_errors_are_counted_by_their_kind() -> None:
    ends = [outcome(end=End.FAILED, kind="HTTP 503", message=f"busy {n}") for n in range(3)]
    broken = outcome(end=End.FAILED, kind="no [DONE]", message="the stream ended without [DONE]")
    found = summarize(run(*ends, broken), None)
    assert [(e.kind, e.count, e.message, e.violation) for e in found.errors] == [
        ("HTTP 503", 3, "busy 0", False),
        ("no [DONE]", 1, "the stream ended without [DONE]", True),
    ]
    assert found.violations == 1


def test_answers_that_are_too_short_are_counted() -> None:
    assert summarize(run(outcome(), outcome(asked=6), outcome(output_tokens=9, choices=2)), None).short == 2
