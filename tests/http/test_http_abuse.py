"""Clients that mean no good, against a real server: what they send is refused, and takes no memory with it.

Memory is the most that the process had at any time, as the kernel counts it.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.live_server import RunningServer, serving
from support.waiting import PATIENCE

MIB = 1 << 20
# The largest body is 28 MiB. Where its buffer has to move as it grows, both places are taken for a moment.
MOST_GROWTH = 70 * MIB
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"
COMPLETION = HEAD % (b"/v1/completions", b"application/json")
FORM = HEAD % (b"/v1/files", b"multipart/form-data; boundary=b")
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
STALLED = 40
SECRETS = ("sk-in-the-header-0123456789", "sk-in-the-other-0123456789", "sk-in-the-query-0123456789")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("abuse")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    options = ["--stall-timeout", "1", "--data-dir", str(folder / "data"), "--admin-socket", str(folder / "admin")]
    options += ["--threads", "1", "--max-num-seqs", "64", "--kv-cache-memory", "64MiB"]
    with serving(None, *options, log=folder / "log") as running:
        running.post("/v1/completions", {"prompt": "rain", "max_tokens": 2})
        yield running


def connect(server: RunningServer, receive_buffer: int = 0) -> socket.socket:
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", int(server.base.rsplit(":", 1)[1])))
    return connection


def answer(server: RunningServer, pieces: Iterator[bytes]) -> bytes:
    """What comes back, up to the end of the connection or of what is sent; empty where it was cut off."""
    came = b""
    with connect(server) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
        with contextlib.suppress(ConnectionResetError):
            while not came.endswith(b"}}") and (data := connection.recv(1 << 16)):
                came += data
    return came


def repeated(beginning: bytes, piece: bytes, times: int, end: bytes = b"") -> Iterator[bytes]:
    yield beginning
    for _ in range(times):
        yield piece
    yield end


def whole(head: bytes, body: bytes) -> Iterator[bytes]:
    yield head + b"Content-Length: %d\r\n\r\n" % len(body)
    yield body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def part(disposition: bytes, value: bytes = b"x", headers: bytes = b"") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; %s\r\n%s\r\n%s\r\n" % (disposition, headers, value)


FILE = part(b'name="file"; filename="a"')
LIST = COMPLETION + CHUNKED
PARTS = FORM + CHUNKED
NESTED = part(b'name="a"', part(b'name="b"') * 1000, b"Content-Type: multipart/mixed; boundary=c\r\n")
GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"
# What is sent, and the statuses with which it may be refused; 0 is a connection that is cut off.
BOMBS = {
    "a declared gigabyte": (lambda: repeated(COMPLETION + b"Content-Length: 1000000000\r\n\r\n", b"[" * MIB, 1), {413}),
    "a body without end": (lambda: repeated(LIST, chunk(b"[" * MIB), 200), {413, 0}),
    "nesting": (lambda: whole(COMPLETION, b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), {400}),
    "nested objects": (lambda: whole(COMPLETION, b'{"prompt":' * 100_000 + b"1" + b"}" * 100_000), {400}),
    "a list of lists": (lambda: whole(COMPLETION, b'{"prompt":[' + b"[]," * (10 * MIB) + b"[]]}"), {400}),
    "a list of numbers": (lambda: whole(COMPLETION, b'{"prompt":[' + b"1," * (14 * MIB) + b"1]}"), {400}),
    "a list of objects": (lambda: whole(COMPLETION, b'{"prompt":[' + b'{"a":1},' * (3 * MIB) + b"1]}"), {400}),
    "one long text": (lambda: whole(COMPLETION, b'{"prompt":"' + b"a" * (8 * MIB) + b'"}'), {400}),
    "a text of escapes": (lambda: whole(COMPLETION, b'{"prompt":"' + b"\\ud83d" * MIB + b'"}'), {400}),
    "gzip": (lambda: whole(COMPLETION + b"Content-Encoding: gzip\r\n", b"\x1f\x8b" + b"\0" * 1000), {415}),
    "deflate": (lambda: whole(COMPLETION + b"Content-Encoding: deflate\r\n", b"\0" * 1000), {415}),
    "gzip as its coding": (lambda: whole(COMPLETION + b"Content-Encoding: identity, gzip\r\n", b"\0" * 1000), {415}),
    "chunks of one byte": (lambda: repeated(LIST, chunk(b"[") * 10_000, 100, b"0\r\n\r\n"), {400}),
    "extensions without end": (lambda: repeated(LIST + b"1;a=", b"a" * MIB, 50), {400, 0}),
    "extensions of each chunk": (lambda: repeated(LIST, b"1;" + b"a" * 999 + b"\r\nx\r\n", 9999), {400, 0}),
    "trailers": (lambda: repeated(LIST + chunk(b"{}") + b"0\r\n", b"X-A: b\r\n" * 1000, 5000), {400, 0}),
    "a trailer without end": (lambda: repeated(LIST + b"0\r\nX-A: ", b"a" * MIB, 50), {400, 0}),
    "a huge header": (lambda: repeated(GET + b"X-A: ", b"a" * MIB, 20, b"\r\n\r\n"), {431, 0}),
    "a header name without end": (lambda: repeated(GET, b"a" * MIB, 20), {431, 400, 0}),
    "many headers": (lambda: repeated(GET, b"X-A: b\r\n" * 1000, 100, b"\r\n"), {431, 0}),
    "a target without end": (lambda: repeated(b"GET /", b"a" * MIB, 20), {431, 0}),
    "a method without end": (lambda: repeated(b"G", b"G" * MIB, 5), {400, 0}),
    "empty lines": (lambda: repeated(b"\r\n", b"\r\n" * MIB, 5), {431, 0}),
    "many parts": (lambda: repeated(PARTS, chunk(part(b'name="purpose"') * 1000), 50), {400, 0}),
    "many files": (lambda: repeated(PARTS, chunk(FILE * 1000), 50), {400, 0}),
    "a part's huge header": (lambda: repeated(PARTS + chunk(b"--b\r\nX-A: "), chunk(b"a" * MIB), 50), {400, 0}),
    "a part's header name": (lambda: repeated(PARTS + chunk(b"--b\r\n"), chunk(b"a" * MIB), 50), {400, 0}),
    "a part's many headers": (lambda: repeated(PARTS + chunk(b"--b\r\n"), chunk(b"A: b\r\n" * 9999), 50), {400, 0}),
    "a form's huge field": (
        lambda: repeated(PARTS + chunk(part(b'name="purpose"')[:-2]), chunk(b"a" * MIB), 50),
        {400, 0},
    ),
    "nested forms": (lambda: whole(FORM, NESTED), {400}),
    "before a form": (lambda: repeated(PARTS, chunk(b"\r\n" * MIB), 50), {400, 0}),
    "a file's declared gigabyte": (lambda: repeated(FORM + b"Content-Length: 1000000000\r\n\r\n", FILE, 1), {413}),
    "a compressed form": (lambda: whole(FORM + b"Content-Encoding: gzip\r\n", b"\0" * 1000), {415}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_and_take_no_memory(server: RunningServer, name: str) -> None:
    send, statuses = BOMBS[name]
    with server.growth() as grown:
        came = answer(server, send())
    status = int(came.split(b" ", 2)[1]) if came else 0
    assert status in statuses, came[:500]
    if status:
        error = json.loads(came[came.index(b"\r\n\r\n") :])["error"]
        assert error["message"] and error["type"] == "invalid_request_error" and error["code"]
    assert grown[0] < MOST_GROWTH, f"{grown[0] / MIB:.0f} MiB more"


def test_requests_by_the_thousand_on_one_connection(server: RunningServer) -> None:
    with server.growth() as grown, connect(server) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(100):
                connection.sendall((GET + b"\r\n") * 5000)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass
    assert grown[0] < MOST_GROWTH
    # Somewhat fewer are answered, all of them.
    with connect(server) as connection:
        connection.sendall((GET + b"\r\n") * 50 + GET + b"Connection: close\r\n\r\n")
        came = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert came.count(b"HTTP/1.1 200 ") == 51


def test_a_body_that_ends_too_early_or_too_late(server: RunningServer) -> None:
    body = b'{"prompt": "rain", "max_tokens": 1}'
    with connect(server) as connection:
        connection.sendall(COMPLETION + b"Content-Length: %d\r\n\r\n" % (len(body) + 10) + body)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    server.wait_for("penstock_requests_in_flight", 0)
    with connect(server) as connection:
        connection.sendall(COMPLETION + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"X" * 1000)
        came = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert came.count(b"HTTP/1.1 ") == 1 and came.startswith(b"HTTP/1.1 200 ")


def test_readers_that_stop_reading(server: RunningServer, folder: Path) -> None:
    """They are cut off, and what their requests held is free; others are served meanwhile."""
    # Far more than a connection's buffers in the kernel take, which may grow beyond a megabyte.
    body = {"messages": [{"role": "user", "content": "rain"}], "stream": True, "max_tokens": 1500, "ignore_eos": True}
    content = json.dumps({**body, "logprobs": True, "top_logprobs": 20}).encode()
    head = HEAD % (b"/v1/chat/completions", b"application/json") + b"Content-Length: %d\r\n\r\n" % len(content)
    cancelled = 'penstock_requests_total{endpoint="chat",outcome="cancelled"}'
    with contextlib.ExitStack() as stack, server.growth() as grown:
        for _ in range(STALLED):
            connection = stack.enter_context(connect(server, receive_buffer=4096))
            connection.sendall(head + content)
        server.wait_for("penstock_requests_in_flight", STALLED)
        answered = server.post("/v1/completions", {"prompt": "rain", "max_tokens": 4, "ignore_eos": True})
        assert answered["usage"]["completion_tokens"] == 4
        server.wait_for("penstock_requests_in_flight", 0)
        server.wait_for("penstock_kv_blocks_used", 0)
        assert f"{cancelled} {STALLED:.1f}" in httpx.get(f"{server.base}/metrics").text
    assert grown[0] < STALLED * 2 * MIB + MOST_GROWTH
    check_engine(folder / "admin")


def test_heads_and_bodies_that_drip(server: RunningServer) -> None:
    """500 connections that never finish a request keep nobody waiting, and are not many megabytes."""
    with contextlib.ExitStack() as stack, server.growth() as grown:
        slow = [stack.enter_context(connect(server)) for _ in range(500)]
        for number, connection in enumerate(slow):
            connection.sendall(COMPLETION + b"Content-Length: 1000\r\n\r\n{" if number % 2 else b"POST /v1/comp")
        for _ in range(5):
            for connection in slow:
                connection.sendall(b" " if connection in slow[1::2] else b"l")
            assert httpx.get(f"{server.base}/health/ready").status_code == 200
            server.post("/v1/completions", {"prompt": "rain", "max_tokens": 1})
    assert grown[0] < MOST_GROWTH
    server.wait_for("penstock_requests_in_flight", 0)


def test_names_of_strangers_make_no_metrics(server: RunningServer) -> None:
    with httpx.Client(base_url=server.base) as http:
        before = http.get("/metrics").text.count("\n")
        for number in range(100):
            http.post("/v1/completions", json={"model": f"m{number}", "prompt": "x", "user": f"u{number}"})
            http.get(f"/v1/models/m{number}")
            http.request(f"M{number}", f"/p{number}")
        text = http.get("/metrics").text
    assert text.count("\n") == before and "m99" not in text


def test_keys_are_in_no_log_or_answer(server: RunningServer, folder: Path) -> None:
    in_header, in_other, in_query = SECRETS
    headers = {"authorization": f"Bearer {in_header}", "x-api-key": in_other, "cookie": f"key={in_header}"}
    with httpx.Client(base_url=server.base, headers=headers) as http:
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/files", "/x"):
            for body in (b"{", b'{"prompt": "x", "max_tokens": 1}', b'{"nothing": 1}'):
                answered = http.post(f"{path}?api_key={in_query}", content=body)
                typed = http.post(
                    f"{path}?api_key={in_query}", content=body, headers={"content-type": "application/json"}
                )
                assert not any(secret in each.text for secret in SECRETS for each in (answered, typed))
    # Neither are those of requests that are no HTTP.
    broken = f"GET /x?api_key={in_query} HTTP/1.1\r\nAuthorization: Bearer {in_header}\r\nbroken\r\n\r\n"
    assert in_query.encode() not in answer(server, iter([broken.encode()]))
    log = (folder / "log").read_text()
    assert "penstock" in log.lower() or "Serving" in log
    assert not any(secret in log for secret in SECRETS)
    assert "Traceback" not in log


def check_engine(admin: Path) -> None:
    """The engine's books agree."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(admin))) as http:
        told = http.get("http://admin/invariants").json()
    assert told["sound"] and told["load"]["running"] == told["load"]["blocks_used"] == 0, told
