"""`penstock explain`: what it shows of a request, and what it says where there is nothing to show."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from rich.console import Console

from penstock.access.keys import Keyring, only_key
from penstock.cli.explain import run_explain, show
from penstock.core.errors import ConfigurationError
from penstock.core.facts import PrefixFound, TierFound
from penstock.core.kv_policy import KVPolicy
from penstock.engine.journal import Fetch
from penstock.observability.account import Preparation, Stall
from penstock.observability.accounts import Accounts
from penstock.observability.explain.explain import Figures, explain
from penstock.server.admin import admin_socket, create_admin_app
from penstock.server.app import create_app
from support.accounts_made import ARRIVED, chunk, make_account, make_journal, mark, waited
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE

KEY = "penstock-the-key-of-this-test-0123456789"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create_app(ScriptedEngine(None, [5, 6, 7]), None, keys=Keyring([only_key(KEY)]))) as base:
        yield base


@pytest.fixture(scope="module")
def request_id(url: str) -> str:
    """Of a request that was answered."""
    body = {"prompt": [1, 2, 3], "max_tokens": 3}
    with httpx.Client(headers={"authorization": f"Bearer {KEY}"}) as http:
        answer = http.post(f"{url}/v1/completions", json=body)
        path = f"{url}/v1/requests/{answer.headers['x-request-id']}/explain"
        while http.get(path).json()["state"] != "ended":
            pass
    return answer.headers["x-request-id"]


def test_a_request_is_shown_with_bars(url: str, request_id: str, penstock_here) -> None:
    done = penstock_here("explain", request_id, "--url", url, "--api-key", KEY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{request_id} completions, completed (200)")
    for word in ("receive", "prepare", "█", "cause", "of its"):
        assert word in done.stdout


def test_json_is_what_the_server_says(url: str, request_id: str, penstock_here) -> None:
    done = penstock_here("explain", request_id, "--url", url, "--api-key", KEY, "--json")
    assert json.loads(done.stdout)["id"] == request_id
    listed = json.loads(penstock_here("explain", "--url", url, "--api-key", KEY, "--json", "--slowest").stdout)
    assert request_id in [each["id"] for each in listed["data"]]


def test_recent_requests_are_listed(url: str, request_id: str, penstock_here) -> None:
    done = penstock_here("explain", "--url", f"{url}/v1", "--api-key", KEY)
    assert done.returncode == 0, done.stderr
    heading, line, *_ = done.stdout.splitlines()
    assert heading.split()[0] == "request" and line.split()[0] == request_id


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"api_key": KEY}, "No request 'req_none' of yours"),
        ({}, "needs an API key"),
        ({"url": "ftp://x"}, "is not the address of a server"),
        ({"url": "http://127.0.0.1:1"}, "cannot be asked"),
        ({"admin_socket": "/nowhere/socket"}, "--admin-socket /nowhere/socket cannot be asked"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(url: str, arguments: dict[str, str], says: str) -> None:
    given: dict[str, Any] = {"url": url, "api_key": None, "admin_socket": None, **arguments}
    with pytest.raises(ConfigurationError, match=says):
        run_explain("req_none", **given, slowest=False, limit=20, as_json=False)


def test_the_operator_is_told_of_everybody(tmp_path: Path, penstock_here) -> None:
    engine = ScriptedEngine(None, [5])
    accounts = Accounts(engine)
    accounts.end(accounts.begin("chat", "alice", time.monotonic()), "cancelled")
    path = tmp_path / "socket"
    with admin_socket(path) as listener:
        server = uvicorn.Server(
            uvicorn.Config(create_admin_app({"scripted": engine}, [], [accounts]), log_config=None, lifespan="off")
        )  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            done = penstock_here("explain", "--admin-socket", str(path), "--json")
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
    assert done.returncode == 0, done.stderr
    assert [each["tenant"] for each in json.loads(done.stdout)["data"]] == ["alice"]


def test_what_a_client_sent_tells_a_terminal_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    account = make_account(client_id="a\x1b[31mb", code="invalid_parameter", message="x\x1b]0;title\x07\ny")
    show(explain(account, mark(10.0), Figures()), Console(width=200, highlight=False))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "a\\x1b[31mb" in shown and "x\\x1b]0;title\\x07\\ny" in shown


def test_tiers_are_shown_with_what_was_left_there(capsys: pytest.CaptureFixture[str]) -> None:
    disk = TierFound("disk", 48, 3 << 20, 32, "failed", 0.5, 2.0)
    journal: Any = make_journal(1.0, mark(2.0), mark(7.0), mark(9.0), prefix=PrefixFound(96, 64, "evicted"))
    journal.prefix = PrefixFound(96, 64, "evicted", tiers=(TierFound("pool", 16, 1 << 20), disk))
    journal.fetches = [Fetch("disk", ARRIVED + 2.0, 80, mark(3.0), 48, 3 << 20, 32, "failed")]
    told = explain(make_account([journal]), mark(10.0), Figures())
    show(told, Console(width=200, highlight=False))
    shown = capsys.readouterr().out
    for text in (
        "pool: 16 tokens, 1.0 MiB",
        "disk: 48 tokens, 3.0 MiB, waited for 1 s; 32 tokens could not be read",
        "(expected: 500 ms to read, 2 s to compute)",
        "fetch",
        "48 tokens from the disk, 3.0 MiB; 32 could not be read",
        "kv_fetch",
    ):
        assert text in shown


def test_everything_that_is_known_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    did = waited("rows", 4.0)
    journal: Any = make_journal(
        1.0, mark(5.0, did), mark(7.0, did), mark(9.0, did), output_tokens=9, grammar_seconds=0.5
    )
    journal.prefix = PrefixFound(96, 32, "different", 33, 5)
    journal.chunks = [chunk(5.0, 1.0, 32, 30, (9, 3)), chunk(6.0, 1.0, 62, 38)]
    journal.preempted, journal.returned, journal.interrupted = [ARRIVED + 7.5], [ARRIVED + 8.0], [ARRIVED + 8.5]
    account = make_account([journal], stalls=[Stall(ARRIVED + 9.0, 1.0)], prompts=[[7] * 100], client_id="mine[x]")
    account.kv_policy, account.dropped = KVPolicy(kind="h2o", tokens=2048), {0: 1600}
    account.preparation = Preparation(0.2, 0.5, 0.4)
    told = explain(account, mark(10.0, did), Figures(), lambda tokens: "[a]" * len(tokens))
    # As it comes over HTTP.
    told = msgspec.json.decode(msgspec.json.encode(told), type=type(told))
    show(told, Console(width=200, highlight=False))
    shown = capsys.readouterr().out
    for text in (
        "client's id mine[x]",
        "prefix cache: 32 of 96 tokens found; what was cached goes on otherwise from token 33 on: '[a]' and not '[a]'",
        "context bounded by h2o to 2,048 tokens: 1,600 were dropped, so that its answer depends on the load",
        "tokenizer_wait",
        "its grammar is compiled",
        "for a place in the batch (--max-num-seqs)",
        "tokens 32 to 61, beside 9 of others' prompts and 3 decoding",
        "preempted",
        "restart",
        "its client did not read",
        "it waited because the batch was full; --max-num-seqs lets more run at a time.",
    ):
        assert text in shown, text


def test_a_bounded_context_of_which_nothing_was_dropped_is_said_to_be_exact(capsys: pytest.CaptureFixture[str]) -> None:
    account = make_account(kv_policy=KVPolicy(kind="window", tokens=64))
    show(explain(account, mark(10.0), Figures()), Console(width=200, highlight=False))
    assert "context bounded by window to 64 tokens: nothing was dropped" in capsys.readouterr().out
