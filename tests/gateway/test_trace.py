"""One trace has the whole way of a request: its client's, the gateway's, and its replicas'."""

import re
from collections.abc import Iterator

import pytest

from gateway.conftest import Start
from penstock.gateway.trace import Trace
from penstock.gateway.ways import Try, Way
from penstock.observability import tracing
from penstock.observability.tracing import Tracing
from support.collector import Collector, collecting
from support.scripted_http import CLOSE, answer, whole_answer
from support.waiting import PATIENCE

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENT, SERVER, ERROR = 3, 2, 2


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", PATIENCE)
    with collecting() as collector:
        yield collector


def test_replicas_belong_to_the_try_that_reached_them(gateway: Start, collector: Collector) -> None:
    traces = Tracing(collector.url, service="penstock-gateway")
    started = gateway(lambda _request: answer(b"{}", 500), whole_answer, tracing=traces)
    answered = started.complete(max_tokens=2)
    root = collector.root_of(answered.headers["x-request-id"])
    assert (root.name, root.kind, root.parent, root.status) == ("POST /v1/completions", SERVER, "", 0)
    assert root.attributes["penstock.request.id"] == answered.headers["x-request-id"]
    assert root.attributes["penstock.gateway.tries"] == 2
    tries = collector.children(root)
    assert [each.kind for each in tries] == [CLIENT, CLIENT]
    told = [server.asked[0].headers["traceparent"] for server in started.servers]
    assert told == [f"00-{root.trace}-{each.id}-01" for each in tries]
    assert [each.attributes["server.address"] for each in tries] == [server.base for server in started.servers]
    assert [each.attributes["penstock.gateway.ended"] for each in tries] == [
        "it answered with status 500",
        "answered with status 200",
    ]
    for each in tries:
        assert root.began <= each.began <= each.ended <= root.ended
    assert {resource["service.name"] for resource in collector.resources} == {"penstock-gateway"}
    traces.close()
    assert b'penstock_gateway_traces_total{outcome="exported"} 1' in started.http.get("/metrics").content


def test_a_clients_trace_goes_on_or_is_not_made(gateway: Start, collector: Collector) -> None:
    traces = Tracing(collector.url)
    started = gateway(whole_answer, tracing=traces)
    body = {"model": "scripted", "prompt": "the fox", "max_tokens": 1}
    for sampled in (1, 0):
        started.http.post("/v1/completions", json=body, headers={"traceparent": f"00-{TRACE}-{SPAN}-0{sampled}"})
    collector.wait(lambda: bool(collector.spans))
    traces.close()
    [root] = [span for span in collector.spans if span.kind == SERVER]
    assert (root.trace, root.parent) == (TRACE, SPAN)
    traced, untraced = (request.headers["traceparent"] for request in started.servers[0].asked)
    [one] = collector.children(root)
    assert traced == f"00-{TRACE}-{one.id}-01"
    assert untraced == f"00-{TRACE}-{SPAN}-00"


def test_what_broke_is_an_error(gateway: Start, collector: Collector) -> None:
    traces = Tracing(collector.url)
    started = gateway(lambda _request: [CLOSE], tracing=traces)
    assert started.complete(max_tokens=1).status_code == 502
    collector.wait(lambda: bool(collector.spans))
    [root] = collector.roots()
    assert (root.status, root.message) == (ERROR, "broken")
    traces.close()


def test_without_a_collector_a_clients_own_goes_on(gateway: Start) -> None:
    started = gateway(whole_answer)
    parent = f"00-{TRACE}-{SPAN}-01"
    body = {"model": "scripted", "prompt": "the fox", "max_tokens": 1}
    started.http.post("/v1/completions", json=body, headers={"traceparent": parent})
    assert started.servers[0].asked[0].headers["traceparent"] == parent
    assert b'traces_total{outcome="exported"} 0' in started.http.get("/metrics").content


@pytest.mark.parametrize(
    ("header", "goes_on", "is_traced"),
    [
        (f"00-{TRACE}-{SPAN}-01", True, True),
        (f"00-{TRACE}-{SPAN}-00", True, False),
        (f"cc-{TRACE}-{SPAN}-01-more", True, True),
        (f"00-{TRACE}-{SPAN}-01-more", False, True),
        (f"ff-{TRACE}-{SPAN}-01", False, True),
        (f"00-{'0' * 32}-{SPAN}-00", False, True),
        (f"00-{TRACE}-{'0' * 16}-00", False, True),
        ("nonsense", False, True),
    ],
)
def test_what_a_client_says_of_its_trace(header: str, goes_on: bool, is_traced: bool) -> None:
    trace = Trace({"traceparent": header})
    assert trace.is_traced is is_traced
    told = trace.next().decode()
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", told) and (TRACE in told) is goes_on
    span = trace.span(Way("1", "/v1/completions", tries=[Try("http://a", "its turn", 0, 0.1)], seconds=0.5))
    assert (span.trace is None) is goes_on and bool(trace.caller) is goes_on
