"""Answers of providers over real sockets: what one request costs, and what it does to the next ones."""

import contextlib
import json
from collections.abc import Callable
from decimal import Decimal
from http.client import HTTPConnection
from typing import Any

import pytest

from gateway.conftest import Gateway, Start
from support.providers import provider, says
from support.scripted_http import Script, stream
from support.waiting import until

PATH = "/v1/chat/completions"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], "timeout": 0.05}
Hosted = Callable[..., tuple[Gateway, Any]]


@pytest.fixture
def hosted(gateway: Start, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Hosted:
    """Starts a gateway with no machine of its own and one provider."""
    stack = contextlib.ExitStack()
    request.addfinalizer(stack.close)

    def start(script: Script, **options: Any) -> tuple[Gateway, Any]:
        asked, server = stack.enter_context(provider(monkeypatch, script, **options))
        return gateway(provider=(asked,)), server

    return start


def test_a_request_that_is_too_large_is_refused_alone(hosted: Hosted) -> None:
    started, server = hosted(says("a"), budget_per_day=Decimal(5))
    large = started.http.post(PATH, json={**CHAT, "max_tokens": 1_000_000})
    assert large.status_code == 503 and "max_tokens" in large.json()["error"]["message"], large.text
    small = [started.http.post(PATH, json={**CHAT, "max_tokens": 4}).status_code for _ in range(3)]
    assert small == [200] * 3 and len(server.asked) == 3
    started.wait_until_empty()


def test_an_attempt_that_is_left_before_it_answers_costs_its_prompt(hosted: Hosted) -> None:
    """It has more tokens than the provider may be sent in a minute."""
    quiet: Script = lambda _request: stream(lambda: False)  # noqa: E731
    started, server = hosted(quiet, tokens_per_minute=40)
    asked = {**CHAT, "messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 4, "stream": True}
    del asked["timeout"]
    client = HTTPConnection(started.url.removeprefix("http://"))
    client.request("POST", PATH, json.dumps(asked), {"content-type": "application/json"})
    until(lambda: len(server.asked) == 1)
    client.close()
    until(lambda: server.left == 1)
    started.wait_until_empty()
    assert started.http.post(PATH, json={**CHAT, "max_tokens": 4}).status_code == 503
    assert len(server.asked) == 1


def test_a_refused_attempt_costs_nothing(hosted: Hosted) -> None:
    answers = [b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n{}"]
    good = says("a")
    started, _ = hosted(lambda request: [answers.pop()] if answers else good(request), tokens_per_minute=40)
    asked = {**CHAT, "messages": [{"role": "user", "content": "word " * 20}], "max_tokens": 4}
    assert [started.http.post(PATH, json=asked).status_code for _ in range(2)] == [400, 200]
