"""Providers in the place of replicas: what they are asked, and that clients see no difference."""

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.conftest import Gateway, Start
from support.providers import KEY, chunk, event, message, provider, says, text_block, tool_block
from support.scripted_http import CLOSE, Script, answer, stream, usage_chunk, whole_answer
from support.waiting import until

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}]}
MESSAGES = {**CHAT, "max_tokens": 50}
RESPONSE = {"model": "scripted", "input": "Hello", "store": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
WEATHER = message(text_block("I look."), tool_block("weather", '{"city":', ' "Oslo"}'), stop="tool_use")


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.fixture
def hosted(gateway: Start, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Starts a gateway with no machine of its own and one provider."""

    stack = contextlib.ExitStack()
    request.addfinalizer(stack.close)

    def start(script: Script, *own: Script, most_requests: int | None = None, **options: Any) -> tuple[Gateway, Any]:
        asked, server = stack.enter_context(provider(monkeypatch, script, **options))
        return gateway(*own, provider=(asked,), most_requests=most_requests), server

    return start


@pytest.mark.parametrize(
    ("script", "api"), [(says("Good", " day"), "openai"), (message(text_block("Good", " day"), output=2), "anthropic")]
)
def test_all_dialects_are_answered_whole(hosted: Callable[..., Any], script: Script, api: str) -> None:
    started, server = hosted(script, api=api)
    chat = started.http.post("/v1/chat/completions", json=CHAT)
    assert chat.status_code == 200, chat.text
    assert chat.headers["x-penstock-replica"] == "provider/hosted"
    body = chat.json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Good day"}
    assert (body["model"], body["choices"][0]["finish_reason"], body["seed"]) == ("scripted", "stop", None)
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (7, 2)
    said = started.http.post("/v1/messages", json=MESSAGES).json()
    assert (said["content"][0]["text"], said["stop_reason"], said["usage"]["output_tokens"]) == (
        "Good day",
        "end_turn",
        2,
    )
    response = started.http.post("/v1/responses", json=RESPONSE).json()
    assert response["output"][0]["content"][0]["text"] == "Good day"
    assert response["usage"]["total_tokens"] == 9 and response["status"] == "completed"
    [first, *_] = server.asked
    assert first.body["model"] == "their-name" and first.body["stream"] is True
    shown = first.headers["authorization" if api == "openai" else "x-api-key"]
    assert shown in (KEY, f"Bearer {KEY}")
    # Whose the request was is not told.
    assert not {"x-penstock-tenant", "x-request-id", "traceparent"} & first.headers.keys()
    started.wait_until_empty()


@pytest.mark.parametrize(
    ("script", "api"), [(says("Good", " day"), "openai"), (message(text_block("Good", " day"), output=2), "anthropic")]
)
def test_all_dialects_are_streamed(hosted: Callable[..., Any], script: Script, api: str) -> None:
    started, _ = hosted(script, api=api)
    chat = started.http.post(
        "/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert chat.headers["content-type"].startswith("text/event-stream") and chat.text.endswith("data: [DONE]\n\n")
    told = events(chat.text)
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in told[:-1]) == "Good day"
    assert told[-1]["usage"]["total_tokens"] == 9 and told[-2]["choices"][0]["finish_reason"] == "stop"
    assert ": penstock" not in chat.text
    said = events(started.http.post("/v1/messages", json={**MESSAGES, "stream": True}).text)
    assert [each["delta"]["text"] for each in said if each["type"] == "content_block_delta"] == ["Good", " day"]
    assert said[-1]["type"] == "message_stop" and said[-2]["usage"]["output_tokens"] == 2
    response = events(started.http.post("/v1/responses", json={**RESPONSE, "stream": True}).text)
    assert response[-1]["response"]["output"][0]["content"][0]["text"] == "Good day"
    assert [each["sequence_number"] for each in response] == list(range(len(response)))


def test_calls_of_tools_look_the_same(hosted: Callable[..., Any]) -> None:
    """An answer of Anthropic's as a chat, and one of OpenAI's as a message."""
    started, server = hosted(WEATHER, api="anthropic")
    asked = {**CHAT, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    choice = started.http.post("/v1/chat/completions", json=asked).json()["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "I look."
    assert (call["id"], call["function"]) == ("toolu_1", {"name": "weather", "arguments": '{"city": "Oslo"}'})
    body = server.asked[0].body
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True} and body["max_tokens"] == 8192
    assert body["tools"] == [{"name": "weather", "input_schema": {"type": "object", "properties": {}}}]
    # The conversation goes on, with the call and its result.
    result = {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"}
    history = [{"role": "system", "content": "Be brief."}, *CHAT["messages"], choice["message"], result]  # type: ignore[misc]
    assert started.http.post("/v1/chat/completions", json={**asked, "messages": history}).status_code == 200
    body = server.asked[1].body
    assert body["system"] == "Be brief."
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"][1] == {
        "type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}
    }  # fmt: skip
    assert body["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]


def test_a_call_of_openais_as_a_message(hosted: Callable[..., Any]) -> None:
    def call(**function: str) -> dict[str, Any]:
        return {"index": 0, "function": function}

    begun = {"tool_calls": [{"id": "call_9", "type": "function", **call(name="weather", arguments="")}]}
    parts = [chunk({"tool_calls": [call(arguments=part)]}) for part in ('{"city":', '"Oslo"}')]
    script = stream(chunk(begun), *parts, chunk({}, "tool_calls"), usage_chunk(7, 4), "[DONE]")
    started, server = hosted(lambda _request: script)
    tools = [{"name": "weather", "input_schema": {"type": "object"}}]
    said = started.http.post("/v1/messages", json={**MESSAGES, "tools": tools, "tool_choice": {"type": "any"}}).json()
    assert said["content"] == [{"type": "tool_use", "id": "call_9", "name": "weather", "input": {"city": "Oslo"}}]
    assert said["stop_reason"] == "tool_use"
    assert server.asked[0].body["tool_choice"] == "required"
    assert server.asked[0].body["max_completion_tokens"] == 50


def test_what_only_own_machines_can_do_is_refused_by_name(hosted: Callable[..., Any]) -> None:
    started, server = hosted(says("no"), api="anthropic")
    for fields, param in (
        ({"top_k": 5}, "top_k"),
        ({"kv_policy": {"type": "window", "tokens": 64}}, "kv_policy"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 1}, "seed"),
        ({"temperature": 1.5}, "temperature"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
    ):
        refused = started.http.post("/v1/chat/completions", json={**CHAT, **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    stored = started.http.post("/v1/responses", json={"model": "scripted", "input": "Hello"})
    assert stored.status_code == 400 and stored.json()["error"]["param"] == "store"
    completion = started.complete()
    assert completion.status_code == 400 and "/v1/chat/completions" in completion.json()["error"]["message"]
    assert not server.asked


def test_what_only_own_machines_can_do_stays_there(hosted: Callable[..., Any]) -> None:
    """The provider would be asked at once where the machines are full."""
    started, server = hosted(says("no"), whole_answer)
    for fields in ({"top_k": 5}, {"logprobs": True}, {"chat_template_kwargs": {"x": 1}}, {}):
        assert started.http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2, **fields}).status_code == 200
    assert started.asked == [4] and not server.asked


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [(401, 502, "provider_failed"), (404, 502, "provider_failed"), (500, 502, "provider_failed"),
     (429, 503, "provider_unavailable"), (529, 503, "provider_unavailable"), (400, 400, "provider_refused")],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_errors_look_the_same(hosted: Callable[..., Any], status: int, expected: int, code: str, path: str) -> None:
    """Nothing of the gateway's own account at the provider is told to clients."""
    said = b'{"type": "error", "error": {"type": "x", "message": "the account sk-1 of Jo has no credit"}}'
    started, _ = hosted(lambda _request: answer(said, status))
    refused = started.http.post(path, json=MESSAGES)
    error = refused.json()["error"]
    # Anthropic's status for what has too much to do.
    assert refused.status_code == (529 if path == "/v1/messages" and expected == 503 else expected), refused.text
    assert ("sk-1" in error["message"]) == (status == 400) and "provider/hosted" in error["message"]
    assert path == "/v1/messages" or error["code"] == code
    assert (expected == 503) == ("retry-after" in refused.headers)


def test_one_that_has_too_much_to_do_is_left_alone(hosted: Callable[..., Any]) -> None:
    busy = b"HTTP/1.1 429 No\r\nRetry-After: 300\r\nContent-Length: 2\r\n\r\n{}"
    started, server = hosted(lambda _request: [busy])
    refusals = [started.http.post("/v1/chat/completions", json={**CHAT, "timeout": 0.01}) for _ in range(3)]
    assert [each.status_code for each in refusals] == [503] * 3 and len(server.asked) == 1


@pytest.mark.parametrize(
    "script",
    [
        stream(chunk({"content": "one "}), CLOSE),
        stream(chunk({"content": "one "})),
        stream(chunk({"content": "one "}), {"error": {"message": "overloaded"}}),
        stream(chunk({"content": "one "}), "{garbage"),
    ],
)
def test_a_stream_that_breaks_says_so(hosted: Callable[..., Any], script: Any) -> None:
    started, _ = hosted(lambda _request: script)
    broken = started.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    told = events(broken.text)
    assert told[0]["choices"][0]["delta"]["content"] == "one " and told[-1]["error"]["code"] == "replica_broken"
    assert "provider/hosted" in told[-1]["error"]["message"]
    # A whole answer has no half.
    assert started.http.post("/v1/chat/completions", json=CHAT).status_code == 502
    started.wait_until_empty()


def test_a_mid_stream_error_of_anthropics(hosted: Callable[..., Any]) -> None:
    failing = [
        event("message_start", message={}),
        event("error", error={"type": "overloaded_error", "message": "busy"}),
    ]
    started, _ = hosted(lambda _request: stream(*failing), api="anthropic")
    message = started.http.post("/v1/messages", json=MESSAGES).json()["error"]["message"]
    assert "(overloaded_error)" in message and "busy" not in message


def test_a_provider_is_told_when_the_client_leaves(hosted: Callable[..., Any]) -> None:
    started, server = hosted(lambda _request: stream(chunk({"content": "one "}), lambda: False))
    with started.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        next(response.iter_lines())
    until(lambda: server.left == 1)
    started.wait_until_empty()


def test_machines_come_first_and_a_provider_answers_while_none_can(hosted: Callable[..., Any]) -> None:
    started, server = hosted(says("from", " outside"), lambda _request: answer(b"{}", 500))
    answered = started.http.post("/v1/chat/completions", json=CHAT)
    assert answered.headers["x-penstock-replica"] == "provider/hosted" and started.asked == [1] == [len(server.asked)]


def full(gateway: Gateway, stack: contextlib.ExitStack) -> None:
    """The only machine is busy, with the one request that it takes on."""
    stack.enter_context(gateway.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}))
    until(lambda: gateway.asked == [1])


def busy_until(done: list[bool]) -> Script:
    """The first answer ends when something is done."""
    return lambda request: (
        whole_answer(request) if "max_tokens" in request.body else stream(chunk({"content": "a"}), lambda: bool(done))
    )


@pytest.mark.parametrize("after", [0.0, 0.05])
def test_a_provider_answers_where_machines_take_too_long(hosted: Callable[..., Any], after: float) -> None:
    done = list[bool]()
    started, server = hosted(says("from", " outside"), busy_until(done), after=after, most_requests=1)
    with contextlib.ExitStack() as stack:
        full(started, stack)
        answered = started.http.post("/v1/chat/completions", json=CHAT)
        assert answered.headers["x-penstock-replica"] == "provider/hosted" and len(server.asked) == 1
        done.append(True)
    started.wait_until_empty()
    again = started.http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2})
    assert again.headers["x-penstock-replica"] == started.servers[0].base


def test_what_a_provider_refuses_is_answered_by_a_machine_in_its_turn(hosted: Callable[..., Any]) -> None:
    """The machine takes on one request, and gets no second one before that has ended."""
    done = list[bool]()
    refusing: Script = lambda _request: answer(b'{"error": "too long"}', 400)  # noqa: E731
    started, server = hosted(refusing, busy_until(done), after=0.0, most_requests=1)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        full(started, stack)
        body = {**CHAT, "max_tokens": 2}
        answered = threads.submit(started.http.post, "/v1/chat/completions", json=body)
        until(lambda: len(server.asked) == 1 and started.dispatch.hold.waiting == 1)
        assert started.asked == [1]
        done.append(True)
        assert answered.result().headers["x-penstock-replica"] == started.servers[0].base
    started.wait_until_empty()


def test_the_next_provider_is_asked_where_one_does_not_take_it(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy ones are no tries that are counted."""
    with contextlib.ExitStack() as stack:
        busy = lambda _request: answer(b"{}", 429)  # noqa: E731
        scripts: list[Script] = [busy, busy, busy, lambda _request: answer(b"{}", 500), says("at last")]
        made = [
            stack.enter_context(provider(monkeypatch, script, name=f"p{number}"))
            for number, script in enumerate(scripts)
        ]
        started = gateway(provider=tuple(options for options, _ in made))
        answered = started.http.post("/v1/chat/completions", json=CHAT)
        assert answered.headers["x-penstock-replica"] == "provider/p4"
        assert [len(server.asked) for _, server in made] == [1] * 5
        started.wait_until_empty()


def test_nothing_but_requests_goes_to_providers(hosted: Callable[..., Any]) -> None:
    """What asks for the account of a request is for machines; a gateway with providers only is ready."""
    started, server = hosted(says("a"))
    headers = {"authorization": "Bearer my-own", "cookie": "a=b"}
    answered = started.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    told = started.http.get(f"/v1/requests/{answered.headers['x-request-id']}/explain", headers=headers)
    assert told.status_code == 200 and told.json()["gateway"]["tries"][0]["replica"] == "provider/hosted"
    assert started.http.get("/health/ready").status_code == 200
    assert started.http.get("/v1/models").json()["data"][0]["id"] == "scripted"
    assert started.http.post("/v1/chat/completions", json={**CHAT, "model": "none"}).status_code == 404
    assert [request.method for request in server.requests] == ["POST"]
    [asked] = server.asked
    assert "my-own" not in json.dumps(asked.headers) and "cookie" not in asked.headers


def test_a_request_without_a_model_stays(hosted: Callable[..., Any]) -> None:
    """The machine's model is meant, although that cannot answer now."""
    started, server = hosted(says("a"), lambda _request: answer(b"{}", 500), model="other")
    refused = started.http.post("/v1/chat/completions", json={"messages": CHAT["messages"]})
    assert refused.status_code >= 500 and not server.asked


def test_its_bounds_hold(hosted: Callable[..., Any]) -> None:
    started, server = hosted(says("a", "b"), requests_per_minute=2)
    statuses = [started.http.post("/v1/chat/completions", json={**CHAT, "timeout": 0.01}).status_code for _ in range(4)]
    assert statuses == [200, 200, 503, 503] and len(server.asked) == 2


def test_its_budget_holds(hosted: Callable[..., Any]) -> None:
    """Each costs 5 * 2 + 2 * 1 + 2 * 10 = 32 millionths, and may cost more when it is sent."""
    started, server = hosted(says("a", "b"), budget_per_day=Decimal("0.0001"))
    asked = {**CHAT, "max_tokens": 4, "timeout": 0.01}
    statuses = [started.http.post("/v1/chat/completions", json=asked).status_code for _ in range(4)]
    assert statuses == [200, 200, 503, 503] and len(server.asked) == 2


@pytest.mark.parametrize("usage", [(-5, 1), (7, -1), (7, 1 << 40)])
def test_usage_that_cannot_be_is_no_usage(hosted: Callable[..., Any], usage: tuple[int, int]) -> None:
    script = stream(chunk({"content": "a"}), chunk({}, "stop"), usage_chunk(*usage), "[DONE]")
    started, _ = hosted(lambda _request: script)
    assert started.http.post("/v1/chat/completions", json=CHAT).status_code == 502


def test_what_has_no_effect_is_told(hosted: Callable[..., Any]) -> None:
    started, _ = hosted(says("a"))
    for stream_ in (False, True):
        told = started.http.post("/v1/chat/completions", json={**CHAT, "verbosity": "low", "stream": stream_})
        assert told.status_code == 200 and told.headers["x-penstock-ignored"] == "verbosity"


def test_a_long_stream_without_usage_is_counted_once(hosted: Callable[..., Any]) -> None:
    """Counting what has come with each piece would take the square of the time."""
    script = stream(*(chunk({"content": "word "}) for _ in range(20_000)), chunk({}, "stop"), "[DONE]")
    started, _ = hosted(lambda _request: script)
    counts = list[int]()
    started.dispatch.named = {"scripted": SimpleNamespace(count=lambda text: counts.append(len(text)) or 1)}  # type: ignore[dict-item]
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    told = events(started.http.post("/v1/chat/completions", json=body).text)
    assert len(told) == 20_002 and told[-1]["usage"]["completion_tokens"] == 1
    assert 1 <= len(counts) <= 3 and set(counts) == {100_000}
