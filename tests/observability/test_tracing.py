"""Traces on their way to a collector that takes them, refuses them, or is not there."""

import functools
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.core.errors import ConfigurationError
from penstock.observability import tracing
from penstock.observability.account import Account
from penstock.observability.explain.explain import Figures, explain
from penstock.observability.spans import Serving, TraceSpan, trace_of
from penstock.observability.tracing import Tracing, check_endpoint
from support.accounts_made import make_account, make_journal, mark
from support.collector import Collector, collecting
from support.http_server import free_port
from support.waiting import PATIENCE, until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, INTERNAL = 2, 1
ERROR = 2
PHASES = {"receive", "prepare", "queue", "prefill", "decode", "deliver"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """One that takes what comes, for which an end waits however slow this machine is."""
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", PATIENCE)
    with collecting() as collector:
        yield collector


def account(number: int = 1, **fields: object) -> Account:
    journal = make_journal(0.5, admitted=mark(1.0), first_token=mark(2.0), finished=mark(9.0), output_tokens=3)
    made = make_account([journal], 10.0, **fields)
    made.id = f"req_{number}"
    return made


def send(traces: Tracing, *accounts: Account) -> None:
    for each in accounts:
        traces.ended(each.caller, functools.partial(made, each))


def made(account: Account, serving: Serving) -> TraceSpan:
    return trace_of(account, explain(account, mark(10.0), Figures(), operator=True), "toy", serving)


def test_each_request_is_one_trace(collector: Collector) -> None:
    traces = Tracing(collector.url)
    send(traces, *(account(number) for number in range(40)))
    traces.close()
    roots = collector.roots()
    assert sorted(root.attributes["penstock.request.id"] for root in roots) == sorted(f"req_{n}" for n in range(40))
    assert len({root.trace for root in roots}) == 40
    assert len(collector.spans) == len({span.id for span in collector.spans}) == 40 * 7
    for root in roots:
        assert root.kind == SERVER and root.parent == "" and root.status == 0
        assert {span.name for span in collector.children(root)} == PHASES
        assert {span.trace for span in collector.below(root)} == {root.trace}
        assert {span.kind for span in collector.below(root)} == {INTERNAL}
    assert traces.outcomes == {"exported": 40, "queue_full": 0, "failed": 0}
    assert set(collector.paths) == {"/v1/traces"}
    (resource,) = {tuple(sorted(each.items())) for each in collector.resources}
    assert dict(resource)["service.name"] == "penstock"


def test_times_are_those_of_the_clock_on_the_wall(collector: Collector) -> None:
    traces = Tracing(collector.url)
    made = account()
    before = time.time()
    moved = time.monotonic() - 10.0 - made.arrived
    after = time.time()
    made.arrived += moved
    made.ended = made.arrived + 10.0
    send(traces, made)
    traces.close()
    (root,) = collector.roots()
    assert root.ended - root.began == 10_000_000_000
    assert before - 1.0 < root.ended / 1e9 < after + 1.0


@pytest.mark.parametrize(
    ("caller", "traced", "parent"),
    [
        ({}, True, False),
        ({"traceparent": f"00-{TRACE}-{SPAN}-01"}, True, True),
        ({"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1,b=2"}, True, True),
        ({"traceparent": f"00-{TRACE}-{SPAN}-00"}, False, False),
        # What is none says nothing.
        ({"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, True, False),
        ({"traceparent": "nonsense"}, True, False),
        ({"tracestate": "a=1"}, True, False),
    ],
)
def test_a_caller_that_traces_gets_its_child_and_one_that_does_not_gets_nothing(
    collector: Collector, caller: dict[str, str], traced: bool, parent: bool
) -> None:
    traces = Tracing(collector.url)
    send(traces, account(caller=caller))
    traces.close()
    assert len(collector.roots()) == traced
    if traced:
        (root,) = collector.roots()
        assert ((root.trace, root.parent) == (TRACE, SPAN)) == parent
        assert root.state == (caller.get("tracestate", "") if parent else "")
        assert all(span.trace == root.trace for span in collector.spans)


def test_failures_are_errors_with_their_codes_and_no_more(collector: Collector) -> None:
    traces = Tracing(collector.url)
    failed = account(1, status=500, code="internal_error", message="what was said")
    failed.outcome = "failed"
    send(traces, failed, account(2))
    traces.close()
    statuses = {root.attributes["penstock.request.id"]: (root.status, root.message) for root in collector.roots()}
    assert statuses == {"req_1": (ERROR, "internal_error"), "req_2": (0, "")}
    assert not any(b"what was said" in message for message in collector.raw)


def test_secrets_come_from_the_environment_and_nothing_else_does(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1")
    traces = Tracing(collector.url)
    send(traces, account())
    traces.close()
    (headers,) = collector.headers
    assert headers["authorization"] == "Bearer s3cret" and "content-encoding" not in headers
    (resource,) = collector.resources
    assert resource["service.name"] == "penstock" and "a" not in resource
    (root,) = collector.roots()
    assert root.attributes["http.route"] == "/v1/completions"
    assert not any(b"s3cret" in message for message in collector.raw)


def test_a_collector_that_is_not_there_costs_traces_and_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    traces = Tracing(f"http://127.0.0.1:{free_port()}")
    send(traces, *(account(number) for number in range(tracing.MOST_WAITING)))

    def is_full() -> bool:
        send(traces, account())
        return traces.outcomes["queue_full"] > 0

    until(is_full)
    with caplog.at_level(logging.DEBUG):
        traces.close()
        traces._thread.join(PATIENCE)
    assert not traces._thread.is_alive(), "it ends at once when it is told that nothing can be sent any more"
    assert traces.outcomes["exported"] == 0
    lines = [record for record in caplog.records if record.name == "penstock.tracing"]
    assert len(lines) == 1 and "were dropped: " in lines[0].getMessage()
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_collector_that_refuses_is_told_of_with_what_it_said(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 403
    traces = Tracing(collector.url)
    send(traces, account())
    traces.close()
    assert traces.outcomes == {"exported": 0, "queue_full": 0, "failed": 1}
    (line,) = [record.getMessage() for record in caplog.records if record.name == "penstock.tracing"]
    assert line.startswith("Traces of 1 requests were dropped: ") and "403" in line


def test_an_end_does_not_wait_for_a_collector_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLUSH_SECONDS", "_END_SECONDS"):
        monkeypatch.setattr(tracing, name, 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        traces = Tracing(f"http://127.0.0.1:{silent.getsockname()[1]}")
        send(traces, *(account(number) for number in range(20)))
        traces.close()
        assert traces._thread.is_alive() and traces._thread.daemon
        connection, _ = silent.accept()
        connection.close()
    traces._thread.join(PATIENCE)
    assert not traces._thread.is_alive()
    assert traces.outcomes == {"exported": 0, "queue_full": 0, "failed": 20}
    traces._troubles.close()


def test_one_trace_that_cannot_be_made_does_not_end_the_others(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    traces = Tracing(collector.url)
    broken = account()
    broken.endpoint = "unknown"  # type: ignore[assignment]
    send(traces, broken)
    until(lambda: traces.outcomes["failed"] == 1)
    send(traces, account(2))
    traces.close()
    assert traces.outcomes == {"exported": 1, "queue_full": 0, "failed": 1}
    assert "KeyError" in caplog.text


def test_whoever_has_ended_takes_no_more(collector: Collector) -> None:
    traces = Tracing(collector.url)
    traces.close()
    send(traces, account())
    assert collector.spans == [] and traces.outcomes["queue_full"] == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "tracing"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("localhost:4318", "is no address of a collector; give one such as http://localhost:4318"),
        ("grpc://localhost:4317", "is no address of a collector"),
        ("http://", "is no address of a collector"),
        ("http://host:port", "is no address of a collector"),
        ("http://[::1", "is no address of a collector"),
        ("", "is no address of a collector"),
        ("http://user:secret@host:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://host:4318?token=secret", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://host:4318/v1/traces", "give what stands before"),
    ],
)
def test_an_address_that_is_none_is_refused(asked: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_endpoint(asked)
    assert says in refused.value.message and "secret@" not in refused.value.message
    assert "=secret" not in refused.value.message


def test_an_address_is_taken_as_it_is() -> None:
    assert check_endpoint(None) is None
    assert check_endpoint("http://localhost:4318/") == "http://localhost:4318"
    assert check_endpoint("https://host/otlp") == "https://host/otlp"


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[otel\]'"):
        check_endpoint("http://localhost:4318")


def test_traces_that_the_environment_turns_off_are_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(ConfigurationError, match="OTEL_SDK_DISABLED turns them off; leave out one of them"):
        check_endpoint("http://localhost:4318")
