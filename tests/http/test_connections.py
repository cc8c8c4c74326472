"""Which connections give way, to whom, and what is left to those who watch the server."""

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest

from penstock.http.connections import SPARE_CONNECTIONS, Connections
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE, until

LIMIT = SPARE_CONNECTIONS + 4


@dataclass(eq=False)
class Line:
    """A connection, and its transport."""

    unread: int = 0
    aborted: bool = False
    closed: bool = False
    transport: asyncio.Transport = field(init=False)

    def __post_init__(self) -> None:
        self.transport = cast(asyncio.Transport, self)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


def test_only_those_that_have_been_idle_for_long_are_closed() -> None:
    now = 0.0
    connections = Connections(3, clock=lambda: now)
    early, busy, late = lines = [Line() for _ in range(3)]
    assert all(map(connections.add, lines))
    connections.begin(busy)
    connections.begin(late)
    now = 5.0
    connections.end(late)
    now = 6.0
    connections.close_idle(2.0)
    assert (early.closed, busy.closed, late.closed) == (True, False, False)
    now = 7.0
    connections.close_idle(2.0)
    assert (busy.closed, late.closed) == (False, True)


def test_the_one_that_is_idle_for_longest_gives_way() -> None:
    connections = Connections(3)
    first, second, third = lines = [Line() for _ in range(3)]
    assert all(map(connections.add, lines))
    connections.begin(first)
    connections.begin(second)
    connections.end(second)
    # The third has not said anything yet; the second has just been served.
    assert connections.add(Line()) and (first.aborted, second.aborted, third.aborted) == (False, False, True)
    second.unread = 1
    latest = Line()
    assert connections.add(latest) and not second.aborted, "who still reads an answer is spared"
    connections.begin(latest)
    connections.begin(second)
    assert not connections.add(Line()) and len(connections) == 3
    connections.remove(third)
    connections.remove(second)
    connections.remove(second)
    assert connections.add(Line()) and len(connections) == 3


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[tuple[str, ScriptedEngine, threading.Event]]:
    engine, release = ScriptedEngine(tokenizer.table, [5, 6]), threading.Event()

    async def wait(call: Any) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)

    engine.before = wait
    with running(create_app(engine, tokenizer), max_connections=LIMIT) as url:
        yield url, engine, release
        release.set()


def connect(url: str, stack: contextlib.ExitStack, sent: bytes = b"") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE))
    connection.sendall(sent)
    return connection


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n"
REQUEST = HEAD + b'{"prompt":[5]}'


def test_heads_that_do_not_end_keep_nobody_out(served: Any) -> None:
    url, _, release = served
    release.set()
    with contextlib.ExitStack() as stack:
        dripping = [connect(url, stack, b"GET /version HT") for _ in range(3 * LIMIT)]
        for _ in range(20):
            assert httpx.get(f"{url}/version").status_code == 200
        # Those that came first have been closed.
        for connection in dripping[:LIMIT]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""


def test_at_the_limit_requests_are_refused_and_the_server_can_be_watched(served: Any) -> None:
    url, engine, release = served
    with contextlib.ExitStack() as stack:
        # Some wait for their answers, and some do not send their bodies.
        busy = [connect(url, stack, REQUEST if number % 2 else HEAD) for number in range(LIMIT - SPARE_CONNECTIONS)]
        until(lambda: len(engine.calls) == len(busy) // 2)
        for _ in range(2 * SPARE_CONNECTIONS):
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": [5]})
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "too_many_connections"
        for path in ("/health", "/health/live", "/health/ready", "/metrics"):
            assert httpx.get(url + path).status_code == 200
        # Whoever keeps even these busy is answered by closed connections, or the same refusal.
        more = [
            connect(url, stack, HEAD.replace(b"/v1/completions", b"/health/live")) for _ in range(SPARE_CONNECTIONS)
        ]
        assert all(connection.recv(1000).startswith(b"HTTP/1.1 405") for connection in more)
        release.set()
        assert all(connection.recv(1000).startswith(b"HTTP/1.1 200") for connection in busy[1::2])
    until(lambda: httpx.post(f"{url}/v1/completions", json={"prompt": [5]}).status_code == 200)


PIPELINED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_who_leaves_leaves_all_requests(served: tuple[str, ScriptedEngine, threading.Event]) -> None:
    """Also the one that is being answered, behind which others were sent ahead."""
    url, engine, _ = served
    body = b'{"prompt": [5], "max_tokens": 2}'
    with contextlib.ExitStack() as stack:
        # What is no chunk ends the connection.
        second = PIPELINED + b"Transfer-Encoding: chunked\r\n\r\nno chunk\r\n"
        connect(url, stack, PIPELINED + b"Content-Length: %d\r\n\r\n%s" % (len(body), body) + second)
        until(lambda: bool(engine.calls) and engine.calls[0].closed.is_set())


@pytest.mark.parametrize("ahead", [1, 8])
def test_who_sends_ahead_and_leaves_is_noticed_at_once(
    served: tuple[str, ScriptedEngine, threading.Event], ahead: int
) -> None:
    """Nothing is written before the answer is whole, which would tell."""
    url, engine, release = served
    with contextlib.ExitStack() as stack:
        connection = connect(url, stack, REQUEST)
        until(lambda: bool(engine.calls))
        for _ in range(ahead):
            connection.sendall(REQUEST)
            time.sleep(0.01)
    until(lambda: engine.calls[0].closed.is_set())
    assert not release.is_set() and len(engine.calls) == 1


def test_what_is_sent_ahead_is_answered_in_order(served: tuple[str, ScriptedEngine, threading.Event]) -> None:
    url, engine, release = served
    with contextlib.ExitStack() as stack:
        connection = connect(url, stack, REQUEST)
        until(lambda: bool(engine.calls))
        for number in range(50):
            connection.sendall(b"GET /v1/models/model-%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number)
        release.set()
        received = b""
        while received.count(b"HTTP/1.1 404") < 50 or not received.endswith(b"}"):
            received += connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 200")
    told = [int(number) for number in re.findall(rb"model-(\d+)", received)]
    assert list(dict.fromkeys(told)) == list(range(50))


def test_who_does_not_read_a_refusal_is_cut_off(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(LIMIT)
    monkeypatch.setattr("penstock.server.serve.Connections", lambda limit, watched_paths: connections)
    app = create_app(ScriptedEngine(tokenizer.table, [5]), tokenizer)
    with running(app, stall_timeout=0.5) as url, contextlib.ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        reader = stack.enter_context(contextlib.closing(socket.socket()))
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((host, int(port)))
        until(lambda: len(connections) == 1)
        (connection,) = connections._idle
        # One large answer, and then small ones until the kernel takes no more: too little to pause who writes.
        reader.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")

        def is_stuck() -> bool:
            if connection.transport.get_write_buffer_size():
                return True
            reader.sendall(b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 150))
            return False

        until(is_stuck)
        # It may be cut off already, which has the same end.
        with contextlib.suppress(ConnectionError):
            reader.sendall(PIPELINED + b"Transfer-Encoding: chunked\r\n\r\n")
            reader.sendall(b"no chunk\r\n")
        until(lambda: not len(connections))
