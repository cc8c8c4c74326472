"""Which requests are handed over to be traced, and with what."""

import time
from collections.abc import Iterator, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest

from penstock.core.errors import InvalidParameter, PenstockError, QueueFull
from penstock.observability.account import Account
from penstock.observability.accounts import Accounts
from penstock.observability.metrics import outcome_of
from penstock.observability.spans import TraceSpan
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import until

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Kept:
    """Takes what is handed over."""

    def __init__(self) -> None:
        self.accounts: list[Account] = []
        self.models: list[str | None] = []
        self.outcomes: dict[str, int] = {}

    def ended(self, _caller: Mapping[str, str], make: "partial[TraceSpan]") -> None:
        """Keep it."""
        account, _, _, model = make.args
        self.accounts.append(account)
        self.models.append(model)

    def only(self) -> Account:
        """The one that has ended, once it has: its client has its answer before that."""
        until(lambda: self.accounts)
        (account,) = self.accounts
        return account


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def http(kept: Kept, tokenizer: Tokenizer) -> Iterator[Any]:
    engine = ScriptedEngine(tokenizer.table, [5, 6])
    with (
        running(create_app(engine, tokenizer, accounts=Accounts(engine, tracing=kept))) as url,  # type: ignore[arg-type]
        described_client(url) as http,
    ):
        yield http


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_handed_over_once_with_what_its_trace_needs(kept: Kept, http: Any, stream: bool) -> None:
    answer = http.post("/v1/completions", json={"prompt": [5], "n": 2, "max_tokens": 2, "stream": stream})
    account = kept.only()
    assert account.id == answer.headers["x-request-id"] and account.ended is not None
    assert account.stream == stream and account.caller == {}
    assert len(account.finish_reasons) == 2 and set(account.finish_reasons) <= {"stop", "length"}
    assert kept.models == ["scripted"]


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ([("traceparent", PARENT)], {"traceparent": PARENT}),
        ([("TraceParent", PARENT), ("tracestate", "a=1")], {"traceparent": PARENT, "tracestate": "a=1"}),
        ([("traceparent", PARENT), ("traceparent", PARENT)], {}),
        ([("traceparent", PARENT), ("tracestate", "a" * 513)], {"traceparent": PARENT}),
        ([("traceparent", "\xff")], {"traceparent": "\xff"}),
    ],
)
def test_what_the_client_says_of_its_trace_is_kept_if_it_is_said_once(
    kept: Kept, http: Any, headers: list[tuple[str, str]], caller: dict[str, str]
) -> None:
    given = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    http.post("/v1/completions", json={"prompt": [5], "max_tokens": 1}, headers=given)
    assert kept.only().caller == caller


def test_what_is_wrong_is_handed_over_too(kept: Kept, http: Any) -> None:
    assert http.post("/v1/completions", json={"prompt": [5], "n": 0}).status_code == 400
    assert kept.only().outcome == "rejected"


def test_a_line_of_a_batch_is_handed_over(kept: Kept) -> None:
    accounts = Accounts(ScriptedEngine(None, []), tracing=kept)  # type: ignore[arg-type]
    # It names its id to the task that serves it, not to the tests that follow.
    account = copy_context().run(accounts.begin_line, "chat", "alice")
    accounts.end(account, "completed")
    accounts.end(account, "cancelled")
    assert kept.accounts == [account]


def test_of_a_storm_of_refusals_one_a_second_is_handed_over(kept: Kept) -> None:
    accounts = Accounts(ScriptedEngine(None, []), tracing=kept)  # type: ignore[arg-type]

    def refuse(error: PenstockError) -> None:
        accounts.refuse(accounts.begin("chat", "", time.monotonic()), outcome_of(error), error, error.http_status)

    for _ in range(30):
        refuse(QueueFull("full."))
    for _ in range(3):
        refuse(InvalidParameter("n", "is wrong."))
    assert [account.code for account in kept.accounts] == ["queue_full", *["invalid_parameter"] * 3]
