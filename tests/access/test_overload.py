"""Refusals, deadlines and readers that stop, over HTTP with a scripted engine."""

import asyncio
import contextlib
import json
import socket
import time
from typing import Any

import httpx
import pytest

from penstock.access.admission import QueueBounds
from penstock.api.resolve import Resolver
from penstock.core.events import LoadSnapshot
from penstock.http import stall
from penstock.http.stall import StalledClientWatch
from penstock.server.app import create_app
from support.loaded_server import REQUESTS, STREAMED, TEMPLATE, TURN, in_background, loaded
from support.scripted_engine import Call, ScriptedEngine
from support.simulated_loop import simulate
from support.sse import events
from support.waiting import PATIENCE, until
from support.world_http import Exchange


def test_a_full_queue_refuses_in_each_api_its_own_way_and_serves_again(tokenizer: Any) -> None:
    with loaded(tokenizer, bounds=QueueBounds(requests=3, tokens=10**6)) as server:
        with in_background(server, 3):
            for path, body in REQUESTS.items():
                response = server.http.post(path, json=body)
                assert response.headers["retry-after"] == "1"
                error = response.json()["error"]
                assert "3 prompts wait, of 3" in error["message"]
                if path == "/v1/messages":
                    assert response.status_code == 529 and error["type"] == "overloaded_error"
                else:
                    assert response.status_code == 503
                    assert (error["type"], error["code"]) == ("server_error", "queue_full")
            assert len(server.engine.calls) == 3
            # Counting is no work for the engine.
            assert server.http.post("/v1/messages/count_tokens", json=TURN).status_code == 200
        assert server.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
        assert server.metric('penstock_requests_refused_total{reason="queue_full"}') == len(REQUESTS)
        assert server.metric("penstock_requests_refused_total") == len(REQUESTS)
        assert server.metric('penstock_requests_total{endpoint="chat",outcome="refused"}') == 1


def test_what_has_begun_makes_room_before_it_ends(tokenizer: Any) -> None:
    with loaded(tokenizer, bounds=QueueBounds(requests=1, tokens=10**6)) as server, in_background(server, 1):
        assert server.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 503
        server.outputs = 1
        with httpx.Client(base_url=server.url) as client:
            body = {"prompt": "hi", "max_tokens": 1}
            until(lambda: client.post("/v1/completions", json=body).status_code == 200)


def test_priorities_go_on_where_others_are_shed(tokenizer: Any) -> None:
    # At 9 of 10 half are refused; chance says 0.5, and at 9.5 (in tokens) it is against the request.
    with (
        loaded(tokenizer, bounds=QueueBounds(requests=10, tokens=20)) as server,
        in_background(server, 1, prompt=[5] * 19),
    ):
        refused = server.http.post("/v1/completions", json={"prompt": [5]})
        assert refused.status_code == 503 and "almost full" in refused.json()["error"]["message"]
        refused = server.http.post("/v1/completions", json={"prompt": [5], "service_tier": "flex"})
        assert refused.status_code == 503 and "almost full" in refused.json()["error"]["message"]
        server.outputs = 10**9
        served = server.http.post("/v1/completions", json={"prompt": [5], "priority": -1})
        assert served.status_code == 200


def test_memory_pressure_and_slow_first_tokens_are_reasons_of_their_own(tokenizer: Any) -> None:
    with loaded(tokenizer, bounds=QueueBounds(requests=8, tokens=10**6, ttft=0.01)) as server:
        with in_background(server, 1, prompt=[5] * 100):
            server.engine.load = LoadSnapshot(waiting=1, blocks_total=100, blocks_used=99)
            refused = server.http.post("/v1/completions", json={"prompt": [5] * 30})
            assert refused.json()["error"]["code"] == "memory_pressure"
            time.sleep(0.3)
            server.engine.load = LoadSnapshot(waiting=1, blocks_total=100, prefill_tokens=100)
            refused = server.http.post("/v1/completions", json={"prompt": [5] * 30})
            assert refused.json()["error"]["code"] == "slo_unreachable"
        for reason in ("memory_pressure", "slo_unreachable"):
            assert server.metric(f'penstock_requests_refused_total{{reason="{reason}"}}') == 1


def test_what_was_refused_for_its_tokens_is_known_when_it_comes_again(tokenizer: Any, count_chats: list[str]) -> None:
    """A retry is decided like the first try, by what has changed, and is parsed only where it may be taken on."""
    body = {"messages": [{"role": "user", "content": "one two three " * 20}], "max_tokens": 2}
    with loaded(tokenizer, bounds=QueueBounds(requests=100, tokens=100)) as server:
        with in_background(server, 1, prompt=[5] * 70):
            for _ in range(3):
                refused = server.http.post("/v1/chat/completions", json=body)
                assert refused.status_code == 503 and "Prompts of 70 tokens wait" in refused.json()["error"]["message"]
            assert len(count_chats) == 1
            # Another request is another one, in whatever it differs.
            shorter = {**body, "messages": [{"role": "user", "content": "one"}]}
            for other in ({**body, "max_tokens": 3}, {**body, "priority": 1}):
                assert server.http.post("/v1/chat/completions", json=other).status_code == 503
            assert len(count_chats) == 3
            assert server.http.post("/v1/messages", json=body).status_code == 529
            assert len(count_chats) == 4
            server.outputs = 10**9
            assert server.http.post("/v1/chat/completions", json=shorter).status_code == 200
        assert server.http.post("/v1/chat/completions", json=body).status_code == 200
        assert len(count_chats) == 6
        assert server.metric('penstock_requests_refused_total{reason="queue_full"}') == 6
        assert server.metric('penstock_requests_total{endpoint="chat",outcome="refused"}') == 5


@pytest.fixture
def count_chats(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each chat that was resolved to tokens."""
    resolved: list[str] = []
    usual = Resolver.chat

    def chat(self: Resolver, *arguments: Any) -> Any:
        resolved.append("chat")
        return usual(self, *arguments)

    monkeypatch.setattr(Resolver, "chat", chat)
    return resolved


def test_a_refused_body_is_passed_over_and_the_connection_goes_on(tokenizer: Any) -> None:
    with (
        loaded(tokenizer, bounds=QueueBounds(requests=1, tokens=10**6)) as server,
        in_background(server, 1),
        contextlib.closing(_connect(server.url)) as connection,
    ):
        body = json.dumps({"prompt": "x" * 3_000_000}).encode()
        connection.settimeout(PATIENCE)
        connection.sendall(_head(len(body)))
        # The answer does not wait for the body.
        assert connection.recv(65536).startswith(b"HTTP/1.1 503")
        connection.sendall(body)
        connection.sendall(_head(2) + b"{}")
        assert connection.recv(65536).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("path", REQUESTS)
def test_a_deadline_in_the_queue_is_a_504_that_says_what_happened(tokenizer: Any, path: str) -> None:
    with loaded(tokenizer) as server:
        server.outputs = 0
        response = server.http.post(path, json={**REQUESTS[path], "timeout": 0.05})
        assert response.status_code == 504
        error = response.json()["error"]
        assert "before there was any output" in error["message"] and "0.05 s" in error["message"]
        assert error["type"] == ("timeout_error" if path == "/v1/messages" else "server_error")
        assert server.all_closed()
        assert server.metric("penstock_requests_total") == 1
        label = {"/v1/chat/completions": "chat"}.get(path, path.removeprefix("/v1/"))
        assert server.metric(f'penstock_requests_total{{endpoint="{label}",outcome="timed_out"}}') == 1


class Simulated:
    """The application on a made-up clock, on which an output takes no time and the engine goes as far as it may."""

    def __init__(self, tokenizer: Any, **app: Any) -> None:
        self.outputs = 10**9
        self.engine = ScriptedEngine(tokenizer.table, tokenizer.encode("one two three", False), max_model_len=10**6)
        self.engine.before = self._hold
        self._app = create_app(self.engine, tokenizer, template=TEMPLATE, **app)

    async def _hold(self, call: Call) -> None:
        if call.outputs >= self.outputs:
            await asyncio.Event().wait()

    async def post(self, path: str, **body: Any) -> Exchange:
        """A request and all of its answer."""
        exchange = Exchange(self._app, "POST", path, json.dumps(body).encode())
        await exchange.read()
        assert all(call.closed.is_set() for call in self.engine.calls)
        return exchange


@pytest.mark.parametrize("path", STREAMED)
def test_a_deadline_in_flight_ends_a_stream_with_one_event(tokenizer: Any, path: str) -> None:
    async def main() -> Exchange:
        server = Simulated(tokenizer)
        server.outputs = 1
        return await server.post(path, **REQUESTS[path], stream=True, timeout=0.2)

    exchange = simulate(main())
    text = exchange.body.decode()
    assert exchange.status == 200 and exchange.ended == pytest.approx(0.2)
    assert text.count("The request's time ran out after 1 output tokens") == 1
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if path in ("/v1/completions", "/v1/chat/completions"):
        assert events(text)[-1]["error"]["code"] == "deadline_exceeded"
        assert data.count("[DONE]") == 1
    elif path == "/v1/messages":
        assert json.loads(data[-1])["error"]["type"] == "timeout_error" and "message_stop" not in text
    else:
        assert json.loads(data[-1])["type"] == "response.failed" and "response.completed" not in text


def test_a_deadline_in_flight_of_a_whole_answer(tokenizer: Any) -> None:
    async def main() -> Exchange:
        server = Simulated(tokenizer)
        server.outputs = 2
        return await server.post("/v1/completions", prompt=["a", "b"], timeout=0.2)

    exchange = simulate(main())
    assert exchange.status == 504 and "after 4 output tokens" in json.loads(exchange.body)["error"]["message"]


def test_the_servers_maximum_holds_for_all_and_the_shorter_one_counts(tokenizer: Any) -> None:
    async def main() -> None:
        server = Simulated(tokenizer, request_timeout=0.1)
        server.outputs = 0
        for fields, says in (
            ({}, "0.1 s, the most that this server"),
            ({"timeout": 60}, "0.1 s, the most"),
            ({"timeout": 0.02}, "0.02 s, which the request asked for"),
        ):
            exchange = await server.post("/v1/completions", prompt="hi", **fields)
            assert exchange.status == 504 and says in json.loads(exchange.body)["error"]["message"]
        server.outputs = 10**9
        assert (await server.post("/v1/completions", prompt="hi", timeout=60)).status == 200

    simulate(main())


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("timeout", [0, -1, 1e300, True, "5"])
def test_timeouts_that_cannot_be_are_refused_by_name(tokenizer: Any, served: Any, path: str, timeout: Any) -> None:
    response = served.http.post(path, json={**REQUESTS[path], "timeout": timeout})
    assert response.status_code == 400 and "timeout" in response.json()["error"]["message"]


def test_a_response_that_is_cancelled_after_its_deadline_is_told_so(tokenizer: Any) -> None:
    async def main() -> Exchange:
        server = Simulated(tokenizer)
        server.outputs = 1
        exchange = await server.post("/v1/responses", input="hi", stream=True, timeout=0.1)
        first = json.loads(exchange.body.split(b"data: ")[1].split(b"\n")[0])
        return await server.post(f"/v1/responses/{first['response']['id']}/cancel")

    assert simulate(main()).status == 404


def _connect(url: str, receive_buffer: int | None = None) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    return connection


def _head(length: int) -> bytes:
    return (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def _post(connection: socket.socket, **fields: Any) -> None:
    body = json.dumps({"prompt": [5, 6], "ignore_eos": True, **fields}).encode()
    connection.sendall(_head(len(body)) + body)


def _read_all(connection: socket.socket) -> bytes:
    """What can still be read until the server ends the connection."""
    connection.settimeout(PATIENCE)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("prompts", [1, 3])
def test_a_stream_whose_reader_stops_is_cancelled_and_what_waits_is_bounded(tokenizer: Any, prompts: int) -> None:
    with loaded(tokenizer, stall_timeout=0.4) as server:
        # Some 10 MB, beyond what sockets take.
        server.engine.reply = [5] * 3000
        with contextlib.closing(_connect(server.url, 4096)) as connection:
            _post(connection, prompt=[[5, 6]] * prompts, n=24, stream=True, max_tokens=3000)
            until(lambda: len(server.engine.calls) == prompts)
            server.wait("penstock_requests_in_flight", 0)
            assert server.all_closed()
            # The engine was not asked for more than its reader took, but for what one step ahead of it is.
            assert all(call.outputs < 3000 for call in server.engine.calls)
            assert b"[DONE]" not in _read_all(connection)
        assert server.metric('penstock_requests_total{endpoint="completions",outcome="cancelled"}') == 1


def test_a_slow_reader_is_no_reader_that_stops(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watches: list[tuple[StalledClientWatch, asyncio.AbstractEventLoop]] = []

    def wait(watch: StalledClientWatch) -> None:
        """The test says when it is time for another look."""
        loop = asyncio.get_running_loop()
        watch._timer = loop.call_later(2 * PATIENCE, lambda: None)
        watches.append((watch, loop))

    monkeypatch.setattr(StalledClientWatch, "_wait", wait)
    # Between two looks a socket may take 256 KiB; the answer of 5 MB must not be read before the last of them.
    monkeypatch.setattr(stall, "LOOKS", 2)
    with loaded(tokenizer) as server:
        server.engine.reply = [5] * 400
        with contextlib.closing(_connect(server.url, 32768)) as connection:
            _post(connection, n=64, stream=True, max_tokens=400)
            connection.settimeout(PATIENCE)
            received = b""
            # For longer than the timeout, a little at a time; then the rest.
            for look in range(1, 3 * stall.LOOKS + 1):
                until(lambda look=look: len(watches) >= look)
                watch, loop = watches[-1]
                assert watch._transport is not None
                unread = watch._transport.get_write_buffer_size()
                while unread and watch._transport.get_write_buffer_size() >= unread:
                    received += connection.recv(20_000)
                loop.call_soon_threadsafe(watch._look)
            assert server.metric("penstock_requests_in_flight") == 1
            while b"[DONE]" not in received[-100:]:
                part = connection.recv(1 << 20)
                assert part, "the connection was cut off"
                received += part
        assert received.count(b'"finish_reason":"stop"') + received.count(b'"finish_reason":"length"') == 64


def test_a_whole_answer_that_nobody_reads_does_not_stay(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "penstock.server"), loaded(tokenizer, stall_timeout=0.4) as server:
        server.engine.reply = [500] * 1000
        with contextlib.closing(_connect(server.url, 4096)) as connection:
            _post(connection, n=128, max_tokens=1000, return_token_ids=True)
            server.wait('penstock_requests_total{endpoint="completions",outcome="completed"}', 1)
            until(lambda: "was cut off" in caplog.text)
            whole = _read_all(connection)
        length = int(whole.split(b"content-length: ")[1].split(b"\r\n")[0])
        assert length > 400_000 and len(whole) < length
