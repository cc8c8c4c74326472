"""Providers that LiteLLM's library asks, over real HTTP to a server in their place."""

import contextlib
import gc
import json
import logging
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from gateway.conftest import Gateway, Start
from gateway.test_hosted import CHAT, MESSAGES, RESPONSE, TOOLS, events
from penstock.core.errors import ConfigurationError
from penstock.gateway.litellm_calls import LiteLLM
from support.providers import KEY, chunk, message, provider, says, text_block, tool_block
from support.scripted_http import CLOSE, Received, Script, Step, answer, stream, usage_chunk
from support.waiting import until

# Its own types and those of pydantic do not quite agree.
pytestmark = [
    # Its import takes two seconds, and would be made by every process that collects tests.
    pytest.mark.skipif(find_spec("litellm") is None, reason="LiteLLM is not installed"),
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]

# What a provider is called in the library, what its URL ends with, and what it answers "Good day" with.
OPENAI = ("openai/their-name", "/v1", says("Good", " day"))
ANTHROPIC = ("anthropic/their-name", "", message(text_block("Good", " day"), output=2))


def gemini(_request: Received) -> list[Step]:
    """Gemini's own API."""

    def part(text: str, **more: Any) -> dict[str, Any]:
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 2, "totalTokenCount": 9, "cachedContentTokenCount": 2}
        candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0, **more}
        return {"candidates": [candidate], "usageMetadata": usage}

    return stream(part("Good"), part(" day", finishReason="STOP"))


GEMINI = ("gemini/their-name", "", gemini)


@pytest.fixture(scope="module")
def library() -> Any:
    """What its import leaves in memory is not looked through after each test."""
    found = LiteLLM()
    gc.collect()
    gc.freeze()
    return found


def _collect() -> None:
    """The library leaves the connections of requests that failed to the garbage collector, which warns of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def asked(
    gateway: Start, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, library: Any
) -> Callable[..., Any]:
    """Starts a gateway with no machine of its own and one provider that the library asks."""
    stack = contextlib.ExitStack()
    request.addfinalizer(_collect)
    request.addfinalizer(stack.close)

    def start(script: Script, at: str = OPENAI[0], root: str = OPENAI[1], **fleet: Any) -> tuple[Gateway, Any]:
        offered, server = stack.enter_context(provider(monkeypatch, script, api="litellm", at=at, root=root))
        return gateway(provider=(offered,), **fleet), server

    return start


@pytest.mark.parametrize(("at", "root", "script"), [OPENAI, ANTHROPIC, GEMINI], ids=["openai", "anthropic", "gemini"])
def test_all_dialects_are_answered(asked: Callable[..., Any], at: str, root: str, script: Script) -> None:
    started, server = asked(script, at, root)
    chat = started.http.post("/v1/chat/completions", json=CHAT)
    assert chat.status_code == 200, chat.text
    assert chat.headers["x-penstock-replica"] == "provider/hosted"
    body = chat.json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Good day"}
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (7, 2)
    said = started.http.post("/v1/messages", json=MESSAGES).json()
    assert (said["content"][0]["text"], said["usage"]["output_tokens"]) == ("Good day", 2)
    response = started.http.post("/v1/responses", json=RESPONSE).json()
    assert response["output"][0]["content"][0]["text"] == "Good day"
    told = events(started.http.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in told) == "Good day"
    assert told[-1]["choices"][0]["finish_reason"] == "stop"
    [first, *_] = server.asked
    assert "their-name" in first.path or first.body["model"] == "their-name"
    assert KEY in json.dumps(first.headers) + first.path
    # Whose the request was is not told.
    assert not {"x-penstock-tenant", "x-request-id", "traceparent"} & first.headers.keys()
    started.wait_until_empty()


def test_calls_of_tools(asked: Callable[..., Any]) -> None:
    weather = message(text_block("I look."), tool_block("weather", '{"city":', ' "Oslo"}'), stop="tool_use")
    started, server = asked(weather, ANTHROPIC[0], ANTHROPIC[1])
    wanted = {**CHAT, "tools": TOOLS, "tool_choice": "required"}
    choice = started.http.post("/v1/chat/completions", json=wanted).json()["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "I look.")
    assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert server.asked[0].body["tool_choice"]["type"] == "any"


@pytest.mark.parametrize(("at", "root"), [OPENAI[:2], ANTHROPIC[:2], GEMINI[:2]], ids=["openai", "anthropic", "gemini"])
@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [(401, 502, "provider_failed"), (403, 502, "provider_failed"), (404, 502, "provider_failed"),
     (500, 502, "provider_failed"), (429, 503, "provider_unavailable"), (503, 503, "provider_unavailable"),
     (400, 400, "provider_refused"), (422, 400, "provider_refused")],
)  # fmt: skip
def test_errors_look_as_those_over_http(
    asked: Callable[..., Any], status: int, expected: int, code: str, at: str, root: str
) -> None:
    """And each is asked once: the library does not try again."""
    said = b'{"error": {"message": "the account of Jo has no credit", "code": null}}'
    started, server = asked(lambda _request: answer(said, status), at, root)
    refused = started.http.post("/v1/chat/completions", json={**CHAT, "timeout": 0.01})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (expected, code), refused.text
    assert ("Jo" in error["message"]) == (code == "provider_refused") and "litellm" not in error["message"].lower()
    assert len(server.asked) == 1
    started.wait_until_empty()


def test_one_that_has_too_much_to_do_is_left_alone(asked: Callable[..., Any]) -> None:
    busy = b"HTTP/1.1 429 No\r\nRetry-After: 300\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    started, server = asked(lambda _request: [busy])
    refusals = [started.http.post("/v1/chat/completions", json={**CHAT, "timeout": 0.01}) for _ in range(3)]
    assert [each.status_code for each in refusals] == [503] * 3 and len(server.asked) == 1
    assert int(refusals[0].headers["retry-after"]) > 60


def test_no_key_is_told(asked: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Gemini's own API has it in the URL, and errors of HTTP name the URL."""
    caplog.set_level(logging.DEBUG)
    started, server = asked(lambda _request: answer(b"not today", 401), GEMINI[0], GEMINI[1])
    refused = started.http.post("/v1/chat/completions", json=CHAT)
    assert refused.status_code == 502 and KEY in server.asked[0].path + json.dumps(server.asked[0].headers)
    assert KEY not in refused.text
    mine = [record.getMessage() for record in caplog.records if record.name == "penstock.gateway"]
    assert any("status 401" in each for each in mine) and not any(KEY in each for each in mine)


@pytest.mark.parametrize(
    "rest",
    [[CLOSE], [], [{"error": {"message": "overloaded"}}], ["{garbage"]],
    ids=["cut", "ended", "an error", "garbage"],
)
def test_a_stream_that_breaks_says_so(asked: Callable[..., Any], rest: list[Any]) -> None:
    started, _ = asked(lambda _request: stream(chunk({"content": "one "}), *rest))
    told = events(started.http.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
    assert told[0]["choices"][0]["delta"]["content"] == "one " and told[-1]["error"]["code"] == "replica_broken"
    assert "provider/hosted" in told[-1]["error"]["message"]
    assert started.http.post("/v1/chat/completions", json=CHAT).status_code == 502
    started.wait_until_empty()


def test_a_provider_is_told_when_the_client_leaves(asked: Callable[..., Any]) -> None:
    started, server = asked(lambda _request: stream(chunk({"content": "one "}), lambda: False))
    with started.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        next(response.iter_lines())
    until(lambda: server.left == 1)
    started.wait_until_empty()


def test_one_that_cannot_be_reached(asked: Callable[..., Any]) -> None:
    started, server = asked(lambda _request: [CLOSE])
    refused = started.http.post("/v1/chat/completions", json=CHAT)
    assert refused.status_code == 502 and len(server.asked) == 1, refused.text
    assert refused.json()["error"]["code"] in ("replica_broken", "provider_failed")


def test_words_that_repeat_are_an_answer(asked: Callable[..., Any]) -> None:
    words = ["ha"] * 150
    started, _ = asked(says(*words))
    body = started.http.post("/v1/chat/completions", json=CHAT).json()
    assert body["choices"][0]["message"]["content"] == "".join(words) and body["usage"]["completion_tokens"] == 150


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ConfigurationError, match=r"penstock\[litellm\]"):
        LiteLLM()


def test_a_model_of_nobody_is_refused_at_start(asked: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match="'their-name'; write at ="):
        asked(says("no"), "their-name")
    # The library would print advice of its own.
    assert not capsys.readouterr().out


def test_usage_and_reasoning_are_told_on(asked: Callable[..., Any]) -> None:
    """Also what was in the provider's cache, and how much of the answer was reasoning."""
    usage = usage_chunk(7, 4, 3)
    usage["usage"]["completion_tokens_details"] = {"reasoning_tokens": 2}
    script = stream(chunk({"reasoning_content": "Hm."}), chunk({"content": "Yes"}), chunk({}, "stop"), usage, "[DONE]")
    started, _ = asked(lambda _request: script)
    body = started.http.post("/v1/chat/completions", json=CHAT).json()
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    assert body["choices"][0]["message"]["content"] == "Yes"


def test_what_a_provider_cannot_do_is_refused_by_name(asked: Callable[..., Any]) -> None:
    """Before it is asked; and what only own machines can do is refused as for other providers."""
    started, server = asked(ANTHROPIC[2], ANTHROPIC[0], ANTHROPIC[1])
    refused = started.http.post("/v1/chat/completions", json={**CHAT, "seed": 1})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "provider_refused")
    assert error["message"].endswith("anthropic does not support parameters: ['seed']"), error
    own = started.http.post("/v1/chat/completions", json={**CHAT, "top_k": 5})
    assert (own.status_code, own.json()["error"]["param"]) == (400, "top_k")
    assert not server.asked
