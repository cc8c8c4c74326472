"""Answers of providers over real sockets: what one request costs, and what it does to the next ones."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from decimal import Decimal
from http.client import HTTPConnection
from typing import Any, cast

import pytest

from gateway.conftest import Gateway, Start
from penstock.gateway.hosted import Hosted as Provider
from penstock.providers.options import ProviderOptions
from support.providers import chunk, message, provider, says, text_block
from support.scripted_http import CLOSE, Received, Script, answer, stream, usage_chunk
from support.waiting import until

PATH = "/v1/chat/completions"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], "timeout": 0.05}
# The request is not looked at.
ANTHROPICS = message(text_block("a"))(cast(Received, None))
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


@pytest.mark.parametrize(
    ("api", "pieces"),
    [
        ("openai", stream(chunk({"content": "a"}), chunk({}, "stop"), usage_chunk(7, 1), "[DONE]", CLOSE)),
        ("openai", stream(chunk({"content": "a"}), chunk({}, "stop"), CLOSE)),
        ("anthropic", [*ANTHROPICS[:-1], CLOSE]),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_a_connection_that_is_lost_behind_the_end_breaks_nothing(
    hosted: Hosted, api: str, pieces: list[Any], streams: bool
) -> None:
    started, _ = hosted(lambda _request: pieces, api=api)
    answered = started.http.post(PATH, json={**CHAT, "stream": streams})
    assert answered.status_code == 200 and '"a"' in answered.text, answered.text
    assert "error" not in answered.text
    started.wait_until_empty()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (429, {"error": {"message": "of Jo", "code": "insufficient_quota"}}, 502),
        (400, {"error": {"message": "The credit balance of Jo is too low"}}, 502),
        (307, {"error": {"message": "of Jo"}}, 502),
        (429, {"error": {"message": "of Jo"}}, 503),
        (400, {"error": {"message": "too long"}}, 400),
    ],
)
def test_what_is_wrong_with_the_account_is_in_the_log_only(
    hosted: Hosted, caplog: pytest.LogCaptureFixture, status: int, body: dict[str, Any], expected: int
) -> None:
    started, _ = hosted(lambda _request: answer(json.dumps(body).encode(), status))
    refused = started.http.post(PATH, json=CHAT)
    assert refused.status_code == expected and "Jo" not in refused.text, refused.text
    assert body["error"]["message"] in caplog.text and str(status) in caplog.text


@pytest.mark.parametrize("after", [b"nan", b"-3", b"inf", b"soon"])
def test_any_time_to_come_back_is_taken(hosted: Hosted, after: bytes) -> None:
    busy = b"HTTP/1.1 429 No\r\nRetry-After: " + after + b"\r\nContent-Length: 2\r\n\r\n{}"
    started, _ = hosted(lambda _request: [busy])
    refused = started.http.post(PATH, json=CHAT)
    assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 300


def test_a_short_rest_does_not_end_a_long_one() -> None:
    async def rest() -> None:
        made = Provider(ProviderOptions(name="p", api="openai", key_variable="K", model=()), "key")
        now = asyncio.get_running_loop().time()
        made.rest(200)
        made.rest(1)
        assert made.rests(now + 199)

    asyncio.run(rest())


@pytest.mark.parametrize("script", [
    stream(b"data: " + b'{"error":' * 20_000 + b"\n\n"),
    answer(b'{"error":' * 7_000, 400),
    stream(chunk({"tool_calls": [{"function": {"arguments": "{}"}}]})),
])  # fmt: skip
def test_no_answer_is_an_error_of_the_gateway(hosted: Hosted, script: Any) -> None:
    started, _ = hosted(lambda _request: script)
    assert started.http.post(PATH, json=CHAT).status_code in (400, 502)
    started.wait_until_empty()


def test_what_cannot_be_read_behind_the_end_is_broken(hosted: Hosted) -> None:
    started, _ = hosted(lambda _request: stream(chunk({"content": "a"}), chunk({}, "stop"), "{garbage", CLOSE))
    assert started.http.post(PATH, json=CHAT).status_code == 502
    streamed = started.http.post(PATH, json={**CHAT, "stream": True}).text
    assert '"a"' in streamed and "replica_broken" in streamed
