"""A server without file descriptors: what is connected goes on, what needs one waits or is told, and all comes back."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from penstock.http import descriptors
from support.http_server import free_port
from support.stored_server import line
from support.waiting import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 96
TOKENS = 200

# SIGUSR1 takes all descriptors that are left, SIGUSR2 gives them back.
PROGRAM = textwrap.dedent(
    """
    import asyncio, logging, os, resource, signal, sys
    from pathlib import Path
    logging.basicConfig(level="INFO")
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
    from support.scripted_engine import ScriptedEngine
    from penstock.http.accept import Acceptor
    from penstock.server.app import create_app
    from penstock.server.serve import bind, run_loop, serve
    from penstock.storage.condition import StorageCondition
    from penstock.storage.store import Store

    engine = ScriptedEngine(None, [5] * 400)

    async def slow(call):
        await asyncio.sleep(0.005)

    engine.before = slow
    held = []

    def take(*_):
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass

    def give(*_):
        while held:
            os.close(held.pop())

    usual = Acceptor._take

    def told(self):
        logging.info("takes connections")
        usual(self)

    Acceptor._take = told
    signal.signal(signal.SIGUSR1, take)
    signal.signal(signal.SIGUSR2, give)
    store = Store.open(Path(sys.argv[2]), condition=StorageCondition(0.02, 0.1))
    listener = bind("127.0.0.1", int(sys.argv[1]))
    run_loop(serve(create_app(engine, None, store=store), listener, on_started=lambda: print("ready", flush=True)))
    store.close()
    """
)


class Started:
    """The server's process, and where it listens."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, log: Path) -> None:
        self.process = psutil.Process(process.pid)
        self.port = port
        self.log = log

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE)

    def lines(self, text: str) -> list[str]:
        return [told for told in self.log.read_text().splitlines() if text in told]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", PROGRAM, str(port), str(tmp_path / "data"), str(LIMIT)]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n", log.read_text()
            yield Started(process, port, log)
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()


def stream(client: httpx.Client, got: list[int]) -> None:
    """Read a stream to its end; `got` has the number of tokens then."""
    body = {"prompt": [5], "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [text for text in answer.iter_lines() if text.startswith("data: {")]
    got.append(httpx.Response(200, text=lines[-1][6:]).json()["usage"]["completion_tokens"])


def upload(client: httpx.Client, contents: bytes = b"x") -> httpx.Response:
    return client.post("/v1/files", files={"file": ("in.jsonl", contents)}, data={"purpose": "batch"})


def test_more_connections_than_descriptors(started: Started) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(started.client()) for _ in range(4)]
        got: list[int] = []
        readers = [threading.Thread(target=stream, args=(client, got)) for client in clients[1:]]
        assert clients[0].get("/health/live").status_code == 200
        for reader in readers:
            reader.start()
        until(lambda: "penstock_requests_in_flight 3.0" in clients[0].get("/metrics").text)
        address = ("127.0.0.1", started.port)
        others = [stack.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(2 * LIMIT)]
        until(lambda: bool(started.lines("ulimit -n")))
        # Connections that are there go on, and what they need a descriptor for has one.
        assert upload(clients[0]).status_code == 200
        tries = len(started.lines("takes connections"))
        for reader in readers:
            reader.join(PATIENCE)
        assert got == [TOKENS] * 3
        # Nobody tries again and again: that would take all of a core.
        assert len(started.lines("takes connections")) == tries > 0
        assert started.process.num_fds() < LIMIT - 8
        (told,) = started.lines("New connections wait")
        assert f"may have {LIMIT} (ulimit -n)" in told
        # Whoever waits is served when others leave, in order.
        others[-1].sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        for other in others[:-1]:
            other.close()
        assert others[-1].recv(100).startswith(b"HTTP/1.1 200 OK")
    with started.client() as client:
        assert client.get("/health/live").status_code == 200


def test_without_any_descriptor(started: Started) -> None:
    with started.client() as client, started.client() as other:
        for each in (client, other):
            assert each.get("/health/live").status_code == 200
        file = upload(client, b"".join(line(f"n{number}", max_tokens=2) for number in range(5))).json()
        got: list[int] = []
        reader = threading.Thread(target=stream, args=(other, got))
        reader.start()
        started.process.send_signal(signal.SIGUSR1)
        until(lambda: started.process.num_fds() >= LIMIT)
        refused = upload(client, b"y" * 3_000_000)
        assert refused.status_code == 503 and "no file descriptors left" in refused.json()["error"]["message"]
        assert client.get(f"/v1/files/{file['id']}/content").status_code == 503
        # The database has its own; the batch's input has to wait.
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = client.post("/v1/batches", json=body).json()
        until(lambda: "descriptors" in str(client.get(f"/v1/batches/{batch['id']}").json()["status_details"]))
        assert client.post("/v1/completions", json={"prompt": [5], "max_tokens": 3}).status_code == 200
        reader.join(PATIENCE)
        assert got == [TOKENS]
        started.process.send_signal(signal.SIGUSR2)
        until(lambda: client.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed")
        assert upload(client).status_code == 200
        until(lambda: client.get("/health/ready").json()["storage"] == "working")


def test_the_limit_is_raised_as_far_as_it_may_be() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = min(before[0], 512) if before[0] != resource.RLIM_INFINITY else 512
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
        reason = descriptors.raise_limit()
        assert int(reason.value) == descriptors.limit() >= soft
        if before[1] == resource.RLIM_INFINITY or before[1] > soft:
            assert f"raised from {soft}" in reason.why
        assert descriptors.raise_limit().why == "the limit of this process"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_reserve_is_kept() -> None:
    assert not descriptors.is_short()
