"""From an account and its explanation to spans."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes

from penstock.core.facts import PrefixFound
from penstock.observability.account import Account, Preparation, Stall
from penstock.observability.explain.explain import Figures, explain
from penstock.observability.explain.explanation import Explanation
from penstock.observability.spans import Serving, TraceSpan, trace_of
from support.accounts_made import ARRIVED, chunk, make_account, make_journal, mark, totals, waited

# The monotonic clock began then.
SERVING = Serving("http", wall_clock=1_700_000_000_000_000_000)
BEGAN = SERVING.at(ARRIVED)
SECOND = 1_000_000_000
SECRET = "the prompt's own words"

CONVENTIONS = {
    value
    for module in (gen_ai_attributes, error_attributes, http_attributes, url_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}


def served(**fields: Any) -> Account:
    """2 s in the queue, 1 s of prefill in two chunks, 4 s of decoding, 1 s until its client had read it."""
    journal = make_journal(
        0.5,
        admitted=mark(2.5, waited("rows", 2.0)),
        first_token=mark(3.5, waited("rows", 2.0)),
        finished=mark(7.5, totals(rows=2.0, steps=14, execute=6.0)),
        chunks=[chunk(2.5, 0.4, 0, 60), chunk(2.9, 0.6, 60, 40, (5, 1))],
        computed_tokens=100,
        output_tokens=4,
        prefix=PrefixFound(96, 0, "unseen", None, None, None),
    )
    return make_account(
        [journal],
        8.5,
        **{
            "preparation": Preparation(0.0, 0.3, 0.25),
            "stalls": [Stall(ARRIVED + 5.0, 0.5), Stall(ARRIVED + 7.25, 1.0)],
            "stalled": 1.5,
            "stream": True,
            "ttft": 3.6,
            "finish_reasons": ["stop"],
            "response_id": "cmpl-1",
            **fields,
        },
    )


def told_of(account: Account) -> Explanation:
    return explain(account, mark(20.0, totals(steps=14)), Figures(), operator=True)


def traced(account: Account) -> TraceSpan:
    return trace_of(account, told_of(account), "toy", SERVING)


def within(span: TraceSpan) -> Iterator[TraceSpan]:
    for child in span.children:
        yield child
        yield from within(child)


def test_a_request_is_a_tree_of_what_its_timeline_tells() -> None:
    root = traced(served())
    assert (root.name, root.kind, root.error) == ("POST /v1/completions", "server", None)
    assert (root.began, root.ended) == (BEGAN, BEGAN + 8.5 * SECOND)
    shape = [(child.name, (child.began - BEGAN) / SECOND, (child.ended - BEGAN) / SECOND) for child in root.children]
    assert shape == [
        ("receive", 0.0, 0.0),
        ("prepare", 0.0, 0.5),
        ("queue", 0.5, 2.5),
        ("prefill", 2.5, 3.5),
        ("decode", 3.5, 7.5),
        # It began while tokens came, and went on behind them.
        ("stall", 7.25, 8.25),
        ("deliver", 7.5, 8.5),
    ]
    by_name = {child.name: child for child in root.children}
    assert [each.name for each in by_name["prefill"].children] == ["chunk", "chunk"]
    assert [each.name for each in by_name["prepare"].children] == ["tokenise"]
    (stall,) = by_name["decode"].children
    assert (stall.name, stall.began, stall.ended) == ("stall", SERVING.at(ARRIVED + 5), SERVING.at(ARRIVED + 5.5))


def test_phases_come_one_after_the_other_and_are_all_of_the_request() -> None:
    account = served()
    told, root = told_of(account), traced(account)
    phases = [child for child in root.children if child.name != "stall"]
    assert [(each.name, each.ended - each.began) for each in phases] == [
        (each.name, pytest.approx(each.seconds * SECOND, abs=2)) for each in told.timeline
    ]
    assert [each.began for each in phases] == [root.began, *(each.ended for each in phases[:-1])]
    assert phases[-1].ended == root.ended
    causes = {name: value for name, value in root.attributes.items() if name.startswith("penstock.cause.")}
    assert sum(causes.values()) == pytest.approx(8.5)  # type: ignore[arg-type]
    assert causes == {f"penstock.cause.{each.code}": each.seconds for each in told.causes}


@pytest.mark.parametrize("offset", [0.1, 1 / 3, 1e-9, 123456.7890123])
def test_no_span_leaves_its_parent_however_times_are_rounded(offset: float) -> None:
    account = served()
    shifted = Serving("http", wall_clock=SERVING.wall_clock + int(offset * SECOND))
    account.arrived -= offset % 1e-3
    root = trace_of(account, told_of(account), "toy", shifted)

    def check(span: TraceSpan) -> None:
        for child in span.children:
            assert span.began <= child.began <= child.ended <= span.ended, (span.name, child.name)
            check(child)

    check(root)
    assert sum(1 for _ in within(root)) == 11


def test_attributes_have_the_conventions_names() -> None:
    root = traced(served(samples=2))
    names = {name for span in (root, *within(root)) for name in span.attributes}
    assert {name for name in names if not name.startswith("penstock.")} <= CONVENTIONS
    expected = {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "url.path": "/v1/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": "toy",
        "gen_ai.response.model": "toy",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 3.6,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "penstock.request.id": "req_1",
        "penstock.outcome": "completed",
        "penstock.verdict.cause": "decode",
        "penstock.queue_seconds": 2.0,
        "penstock.time_to_first_token": 3.6,
    }
    assert {name: root.attributes.get(name) for name in expected} == expected
    assert "penstock.tenant" not in root.attributes and "error.type" not in root.attributes


@pytest.mark.parametrize(
    ("endpoint", "operation", "route"),
    [
        ("chat", "chat", "/v1/chat/completions"),
        ("messages", "chat", "/v1/messages"),
        ("responses", "chat", "/v1/responses"),
        ("embeddings", "embeddings", "/v1/embeddings"),
    ],
)
def test_each_endpoint_has_its_operation_and_its_route(endpoint: Any, operation: str, route: str) -> None:
    account = served()
    account.endpoint = endpoint
    root = traced(account)
    assert root.name == f"POST {route}" and root.attributes["http.route"] == route
    assert root.attributes["gen_ai.operation.name"] == operation


@pytest.mark.parametrize(
    ("outcome", "status", "code", "error"),
    [
        ("completed", 200, None, None),
        ("rejected", 400, "invalid_parameter", None),
        ("refused", 503, "queue_full", "queue_full"),
        ("failed", 500, "internal_error", "internal_error"),
        # In a stream that had begun.
        ("failed", 200, "row_failed", "row_failed"),
        ("timed_out", 504, "deadline_exceeded", "deadline_exceeded"),
        ("cancelled", 200, None, None),
        # Its client left before there was a head.
        ("cancelled", None, None, None),
    ],
)
def test_what_the_server_failed_at_is_an_error_and_what_its_client_did_wrong_is_none(
    outcome: Any, status: int | None, code: str | None, error: str | None
) -> None:
    account = served(status=status, code=code, message=SECRET)
    account.outcome = outcome
    root = traced(account)
    assert root.error == error
    assert root.attributes.get("error.type") == code
    assert root.attributes.get("http.response.status_code") == status


def test_a_request_that_was_not_taken_on_says_nothing_of_tokens() -> None:
    account = make_account(None, 0.5, taken_on=None, code="invalid_parameter", status=400, prompt_tokens=0)
    account.outcome = "rejected"
    root = traced(account)
    assert [child.name for child in root.children] == ["receive", "prepare"]
    assert not [name for name in root.attributes if name.startswith(("gen_ai.usage", "gen_ai.request"))]


def test_a_line_of_a_batch_came_over_no_http() -> None:
    root = traced(served(line=True, stream=False))
    assert (root.name, root.kind) == ("text_completion toy", "internal")
    assert not [name for name in root.attributes if name.startswith(("http.", "url."))]


def test_what_clients_write_is_in_no_attribute() -> None:
    account = served(
        tenant="alice", user=SECRET, metadata={"k": SECRET}, message=SECRET, code="internal_error", client_id="mine"
    )
    account.prompts = [[1, 2, 3]]
    told = explain(account, mark(20.0), Figures(), lambda ids: SECRET, operator=True)
    assert told.prompt_text == SECRET, "the operator had it kept"
    root = trace_of(account, told, "toy", SERVING)
    assert root.attributes["penstock.tenant"] == "alice" and root.attributes["penstock.client_id"] == "mine"
    for span in (root, *within(root)):
        assert SECRET not in repr((span.name, dict(span.attributes), span.error))
