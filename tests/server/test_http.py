"""The HTTP side: routes, bodies, health, metrics, and clients that go away."""

import asyncio
import json
import re
import socket
import threading
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from penstock.core.errors import TokenizerError
from penstock.http.error_bodies import Dialects, ErrorHandlers
from penstock.http.protocol import BODY_SPAN_SECONDS, HEAD_SECONDS, LEAST_BODY_BYTES, BoundedProtocol
from penstock.server.app import create_app
from penstock.server.health import HealthApi
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.simulated_loop import simulate
from support.sse import events
from support.tokenizers_made import make_raw, save
from support.waiting import PATIENCE, until
from support.world_http import Exchange

BODY_LIMIT = 200_000
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def raw_request(url: str, request: bytes, read: int = 1 << 16) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(request)
        return connection.recv(read)


@dataclass
class Timer:
    """What a connection waits for, on a clock that the test moves."""

    protocol: BoundedProtocol
    seconds: float

    def expire(self) -> None:
        """So long has passed."""
        self.protocol.loop.call_soon_threadsafe(self.protocol._look)


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    """Those that connections have begun, in order; none expires by itself."""
    begun: list[Timer] = []

    def wait(protocol: BoundedProtocol, seconds: float) -> None:
        protocol._stop_waiting()
        protocol._timer = protocol.loop.call_later(2 * PATIENCE, lambda: None)
        begun.append(Timer(protocol, seconds))

    monkeypatch.setattr(BoundedProtocol, "_wait", wait)
    return begun


def test_unknown_routes_and_methods(served: Any) -> None:
    response = served.http.get("/nowhere")
    assert response.status_code == 404 and response.json()["error"]["code"] == "route_not_found"
    response = served.http.get("/v1/completions")
    assert response.status_code == 405 and response.json()["error"]["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]


def test_every_route_refuses_other_methods(served: Any) -> None:
    app = create_app(served.engine, served.tokenizer)
    for route in app.routes:
        assert isinstance(route, Route)
        response = served.http.request("PATCH", re.sub(r"\{[a-z:]+\}", "x", route.path))
        assert response.status_code == 405
        if route.path in ("/translate", "/languages", "/embed", "/predict"):
            assert response.json()["error"] == f"PATCH is not a method of {route.path!r}."
        elif not route.path.startswith("/v1/messages"):
            assert response.json()["error"]["code"] == "method_not_allowed"


def test_a_model_name_with_slashes(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(tokenizer.table, [5], name="org/model")
    with running(create_app(engine, tokenizer)) as url:
        assert httpx.get(f"{url}/v1/models/org/model").json()["id"] == "org/model"


def test_bodies_must_be_plain_json(served: Any) -> None:
    for headers in (
        {"content-type": "text/plain"},
        {},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ):
        response = served.http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
        assert response.status_code == 415 and response.json()["error"]["code"] == "unsupported_media_type"


def test_a_declared_length_beyond_the_limit_is_refused_unread(served: Any) -> None:
    answer = raw_request(served.url, HEAD % 9_000_000_000)
    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer and b"connection: close" in answer.lower()


@pytest.mark.parametrize("size", [BODY_LIMIT + 1, 20 * BODY_LIMIT])
def test_whoever_sends_somewhat_too_much_gets_to_read_why(served: Any, size: int) -> None:
    body = b"[" * size
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(HEAD % size + body)
        answer = b""
        # Its head may come before the rest.
        while b"body_too_large" not in answer and (piece := connection.recv(1 << 16)):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer


def test_a_body_without_length_is_bounded_while_it_is_read(served: Any) -> None:
    # Far more than connections hold on their way.
    sent, most = 0, 500 * BODY_LIMIT

    def endless() -> Any:
        nonlocal sent
        while sent < most:
            sent += 50_000
            yield b"[" * 50_000

    try:
        response = served.http.post("/v1/completions", content=endless(), headers={"content-type": "application/json"})
        assert response.status_code == 413
    except httpx.TransportError:
        pass  # the server closed the connection while the client was still writing
    assert sent < most
    assert served.complete().status_code == 200


def test_a_long_text_is_tokenized_beside_the_event_loop(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released, encode = threading.Event(), threading.Event(), served.tokenizer.encode
    answers: list[httpx.Response] = []

    def blocking(*arguments: Any) -> list[int]:
        begun.set()
        assert released.wait(PATIENCE)
        ids: list[int] = encode(*arguments)
        return ids

    monkeypatch.setattr(served.tokenizer, "encode", blocking)
    monkeypatch.setattr(served.tokenizer, "check_length", lambda *arguments: None)
    client = threading.Thread(target=lambda: answers.append(served.complete(prompt="fox " * 20_000)))
    client.start()
    try:
        assert begun.wait(PATIENCE)
        # The loop answers others while the tokenizer is at work.
        assert httpx.get(f"{served.url}/health/live", timeout=PATIENCE).status_code == 200
        assert answers == []
    finally:
        released.set()
        client.join(PATIENCE)
    assert answers[0].status_code == 400 and answers[0].json()["error"]["code"] == "context_length_exceeded"


def test_a_text_that_is_far_too_long_is_refused_without_being_tokenized(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> list[int]:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(served.tokenizer, "encode", never)
    text = "fox " * 20_000
    for response, param in (
        (served.complete(prompt=text), "prompt"),
        (served.chat(messages=[{"role": "user", "content": text}]), "messages"),
    ):
        error = response.json()["error"]
        assert response.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == param


@pytest.mark.parametrize("line", [b"X-A: " + b"a" * 70_000, b"X-A: b\r\n" * 10_000])
def test_headers_are_bounded(served: Any, line: bytes) -> None:
    answer = raw_request(served.url, b"GET /health/live HTTP/1.1\r\nHost: x\r\n" + line)
    assert answer.startswith(b"HTTP/1.1 431") and b"headers_too_large" in answer
    # A long body is not a long head, nor are the heads of several requests.
    for _ in range(3):
        assert served.http.get("/health/live", headers={"x-a": "a" * 30_000}).status_code == 200
    assert served.complete(prompt=[5], user="x" * 500, stop=["a"] * 9, logit_bias={"5": 1}).status_code == 200


def test_a_head_that_does_not_end_is_refused(served: Any, timers: list[Timer]) -> None:
    address = ("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    for sent in (b"", b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-A:"):
        timers.clear()
        with socket.create_connection(address, timeout=PATIENCE) as connection:
            connection.sendall(sent)
            until(lambda sent=sent: timers and timers[0].protocol._head_bytes == len(sent))
            (timer,) = timers
            timer.expire()
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert timer.seconds == HEAD_SECONDS
        assert answer.startswith(b"HTTP/1.1 408 ") and b"request_too_slow" in answer
    # One byte after the other does not help, and between requests there is time.
    timers.clear()
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        protocol = timers[0].protocol
        assert protocol._timer is None
        timers.clear()
        for count, byte in enumerate(b"GET /health/live HTTP/1.1\r\n" + b"X" * 20, 1):
            connection.sendall(bytes([byte]))
            until(lambda count=count: protocol._head_bytes == count)
        (timer,) = timers
        timer.expire()
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_does_not_arrive_ends_the_connection(served: Any, timers: list[Timer]) -> None:
    address = ("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    )
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        connection.sendall(head + b"{")
        until(lambda: timers and timers[-1].seconds == BODY_SPAN_SECONDS)
        timers[-1].expire()
        assert b"".join(iter(lambda: connection.recv(4096), b"")) == b""
    # One that arrives in time is read, however long it takes.
    timers.clear()
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        begin, end = b'{"prompt": [', b'5], "max_tokens": 2}'
        connection.sendall(head)
        until(lambda: timers and timers[-1].seconds == BODY_SPAN_SECONDS)
        connection.sendall(begin)
        for spans in range(4):
            connection.sendall(b" " * 20_000)
            until(lambda: timers[-1].protocol._body_bytes >= LEAST_BODY_BYTES)
            timers[-1].expire()
            until(lambda spans=spans: [timer.seconds for timer in timers].count(BODY_SPAN_SECONDS) == spans + 2)
        connection.sendall(b" " * (20_000 - len(begin + end)) + end)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert len(served.engine.calls) == 1


def test_deep_health_is_a_real_generation_and_asked_for_rarely(served: Any) -> None:
    found = [served.http.get("/health/deep").json() for _ in range(3)]
    assert {(each["status"], each["tokens"]) for each in found} == {("generating", 10)}
    (call,) = served.engine.calls
    assert call.params.max_tokens == 10 and call.standing.priority < 0


def test_deep_health_tells_what_is_wrong(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(tokenizer.table, range(5, 15))
    app = Starlette(
        routes=HealthApi([engine], probe_seconds=7.0, fresh_seconds=0.0).routes(),
        exception_handlers=ErrorHandlers(Dialects()).all(),
    )

    async def hang(call: Any) -> None:
        if call.outputs == 3:
            await asyncio.Event().wait()

    async def look() -> Exchange:
        # What was found counts until it is older than nothing.
        await asyncio.sleep(0.01)
        exchange = Exchange(app, "GET", "/health/deep")
        await exchange.read()
        return exchange

    async def main() -> None:
        engine.before = hang
        answer = await look()
        assert answer.status == 503 and b"3 of 10 tokens within 7 s" in answer.body
        assert answer.ended == pytest.approx(7.01)
        assert engine.calls[0].closed.is_set(), "nobody computes what nobody waits for"
        engine.before = None
        assert (await look()).status == 200
        engine.error, engine.finish = "It broke.", "error"
        assert (await look()).status == 500
        engine.unavailable = "It is away."
        assert b"It is away." in (await look()).body

    simulate(main())


def test_health_and_readiness(served: Any) -> None:
    assert served.http.get("/health/live").status_code == 200
    for path in ("/health", "/health/ready"):
        assert served.http.get(path).json()["status"] == "ready"
    served.engine.unavailable = "The engine has died; it is being restarted."
    assert served.http.get("/health/live").status_code == 200
    ready = [served.http.get(path) for path in ("/health", "/health/ready")]
    for response in (*ready, served.complete(), served.chat(stream=True)):
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert response.json()["error"] == {
            "message": "The engine has died; it is being restarted.",
            "type": "server_error",
            "param": None,
            "code": "engine_unavailable",
        }


@pytest.mark.parametrize("prompts", [[5], [[5], [6], [7]]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_request(served: Any, stream: bool, prompts: Any) -> None:
    started, count = threading.Event(), 1 if prompts == [5] else 3

    async def endless(call: Any) -> None:
        started.set()
        if call.outputs == 2:
            await asyncio.Event().wait()

    served.engine.before = endless
    host, port = served.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": prompts, "max_tokens": 100, "stream": stream}).encode()
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(HEAD % len(body) + body)
        assert started.wait(PATIENCE)
        until(lambda: sum(call.outputs for call in served.engine.calls) == 2 * count)
        assert not any(call.closed.is_set() for call in served.engine.calls)
    until(lambda: all(call.closed.is_set() for call in served.engine.calls))
    assert len(served.engine.calls) == count
    until(lambda: "penstock_requests_in_flight 0.0" in served.http.get("/metrics").text)


def test_a_client_that_does_not_read_holds_the_engine_back_only_for_itself(served: Any) -> None:
    engine = served.engine

    def has_halted() -> bool:
        """Whether all of another answer is made while the slow client's does not go on."""
        seen = engine.calls[0].outputs
        assert served.complete(max_tokens=5).status_code == 200
        return bool(engine.calls[0].outputs == seen)

    reply, engine.reply = engine.reply, [5] * 60_000
    object.__setattr__(engine, "model", msgspec.structs.replace(engine.model, max_model_len=100_000))
    try:
        host, port = served.url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": [5], "max_tokens": 60_000, "stream": True, "return_token_ids": True}).encode()
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.sendall(HEAD % len(body) + body)
            until(lambda: engine.calls and engine.calls[0].outputs > 100)
            # Another client is served meanwhile, and the slow one's stream comes to a halt.
            until(has_halted)
            assert engine.calls[0].outputs < 60_000
        until(engine.calls[0].closed.is_set)
    finally:
        engine.reply = reply
        object.__setattr__(engine, "model", msgspec.structs.replace(engine.model, max_model_len=256))


def test_without_a_tokenizer_token_ids_are_served(tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(None, [5, 6])
    with running(create_app(engine, None)) as url, described_client(url) as http:

        def post(path: str, **fields: object) -> httpx.Response:
            return http.post(path, json=fields)

        choice = post("/v1/completions", prompt=[1, 2], return_token_ids=True, logprobs=1).json()["choices"][0]
        assert (choice["text"], choice["token_ids"]) == ("", [5, 6])
        assert choice["logprobs"]["tokens"] == ["token_id:5", "token_id:6"]
        for fields, param in (
            ({"prompt": "text"}, "prompt"),
            ({"prompt": [1], "stop": "x"}, "stop"),
            ({"prompt": [1], "echo": True}, "echo"),
        ):
            response = post("/v1/completions", **fields)
            assert response.status_code == 400 and response.json()["error"]["param"] == param
        response = post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
        assert response.status_code == 400 and response.json()["error"]["param"] == "messages"


def test_a_template_that_refuses_a_conversation(tmp_path: Any) -> None:
    source = "{{ raise_exception('Roles must alternate.') }}"
    tokenizer = load_tokenizer(save(make_raw("byte_level"), tmp_path, chat_template=source))
    with running(create_app(ScriptedEngine(tokenizer.table, [5]), tokenizer)) as url:
        response = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 400 and "Roles must alternate." in response.json()["error"]["message"]
    broken = load_tokenizer(save(make_raw("byte_level"), tmp_path, chat_template="{% for %}"))
    with pytest.raises(TokenizerError):
        create_app(ScriptedEngine(broken.table, [5]), broken)


def test_metrics_of_requests_and_engine(served: Any) -> None:
    def values() -> dict[str, float]:
        lines = served.http.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    before = values()
    served.complete(max_tokens=3)
    streamed = events(served.chat(stream=True).text)
    served.complete(temperature=-1)
    served.engine.finish = "error"
    served.chat()
    after = values()

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown('penstock_requests_total{endpoint="completions",outcome="completed"}') == 1
    assert grown('penstock_requests_total{endpoint="completions",outcome="rejected"}') == 1
    assert grown('penstock_requests_total{endpoint="chat",outcome="completed"}') == 1
    assert grown('penstock_requests_total{endpoint="chat",outcome="failed"}') == 1
    assert grown('penstock_samples_finished_total{reason="length"}') == 1
    reply = len(served.engine.reply)
    assert grown("penstock_generation_tokens_total") == 3 + 2 * reply
    assert grown("penstock_prompt_tokens_total") == sum(len(call.prompt) for call in served.engine.calls)
    assert grown("penstock_time_to_first_token_seconds_count") == 3
    # A gap is between two chunks with content: some tokens of the stream have none, and the failed chat lost its last.
    chunks = sum(bool(event["choices"][0]["delta"].get("content")) for event in streamed)
    assert 2 < chunks < reply
    assert grown("penstock_inter_token_latency_seconds_count") == 2 + (chunks - 1) + (reply - 2)
    assert grown("penstock_request_duration_seconds_count") == 2
    assert after["penstock_kv_blocks_used"] == 40 and after["penstock_requests_waiting"] == 3


def test_names_from_clients_make_no_series(served: Any) -> None:
    def series() -> int:
        return served.http.get("/metrics").text.count("\n")

    before = series()
    for index in range(20):
        served.complete(model=f"model-{index}")
        served.complete(user=f"user-{index}", cache_salt=f"salt-{index}")
        served.http.get(f"/path-{index}")
    assert series() == before
