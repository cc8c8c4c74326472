"""The listening socket, and the orderly end of a server process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from penstock.core.errors import AddressInUse, ConfigurationError
from penstock.server.serve import bind
from support.http_server import free_port
from support.waiting import PATIENCE, until

STOPPING = f"Stopping: 1 running requests may finish, for at most {PATIENCE:g} s; a second signal ends them.\n"
# So long that a server which waits for it does not end while a test waits.
LONGER = 10 * PATIENCE
ROOT = Path(__file__).parents[2]
PROGRAM = textwrap.dedent(
    """
    import asyncio, signal, sys, threading
    from support.scripted_engine import ScriptedEngine
    from penstock.server.app import create_app
    from penstock.server.serve import bind, run_loop, serve

    engine = ScriptedEngine(None, range(5, 25))

    # A notice that the machine goes, which leaves requests the given time.
    noticed = asyncio.Event()

    async def taken():
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, noticed.set)
        await noticed.wait()
        return float(sys.argv[3])

    # After its first token the engine waits for the test.
    goes_on = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: goes_on.set())

    async def hold(call):
        while call.outputs and not goes_on.is_set():
            await asyncio.sleep(0.01)

    engine.before = hold
    listener = bind("127.0.0.1", int(sys.argv[1]))
    app = create_app(engine, None)
    ready = lambda: print("ready", flush=True)
    run_loop(serve(app, listener, on_started=ready, drain_seconds=float(sys.argv[2]), taken=taken))
    print("stopped", flush=True)
    """
)


@contextlib.contextmanager
def started(drain: float = 30.0, left: float = 30.0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process and its port; it ends within `drain` seconds, or `left` after a notice (SIGUSR2).

    Its engine makes one token of each request, and the others once SIGUSR1 was sent.
    """
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", PROGRAM, str(port), str(drain), str(left)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process, port
        finally:
            process.kill()


def in_flight(port: int, count: int) -> bool:
    """Whether so many requests are."""
    return f"penstock_requests_in_flight {count}.0" in httpx.get(f"http://127.0.0.1:{port}/metrics").text


def test_a_port_in_use_is_told() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"Port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("no.such.host.invalid", 80, "'no.such.host.invalid' cannot be resolved"),
        ("192.0.2.1", 0, "Cannot listen on 192.0.2.1, port 0"),
        ("127.0.0.1", 70_000, "70000 is not a port; use one from 1 to 65535"),
    ],
)
def test_an_address_that_cannot_be_used_is_told(host: str, port: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bind(host, port)


def test_the_first_signal_lets_requests_finish() -> None:
    request = {"prompt": [1], "stream": True, "max_tokens": 20, "return_token_ids": True}
    with started(PATIENCE) as (process, port):
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=request) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None and process.stderr.readline() == STOPPING
            process.send_signal(signal.SIGUSR1)
            assert "data: [DONE]" in list(lines)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output, errors) == (0, "stopped\n", "")


def test_a_server_that_drains_says_so_and_refuses_what_comes() -> None:
    request = {"prompt": [1], "stream": True, "max_tokens": 20}
    with started(PATIENCE) as (process, port), httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        with http.stream("POST", "/v1/completions", json=request) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code != 200)
            for path, body in (
                ("/v1/completions", {"prompt": [1]}),
                ("/v1/messages", {"max_tokens": 1, "messages": []}),
            ):
                refusal = httpx.post(f"http://127.0.0.1:{port}{path}", json=body)
                assert refusal.status_code in (503, 529) and int(refusal.headers["retry-after"]) >= 1
                assert "stopping" in refusal.json()["error"]["message"]
            for path in ("/health/live", "/metrics"):
                assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200
            process.send_signal(signal.SIGUSR1)
            assert "data: [DONE]" in list(lines)
        assert process.wait(timeout=PATIENCE) == 0


def test_what_takes_longer_than_the_drain_is_told_so() -> None:
    request = {"prompt": [1], "max_tokens": 20}
    with started(0.5) as (process, port), httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(httpx.post, f"http://127.0.0.1:{port}/v1/completions", json=request)
            with http.stream("POST", "/v1/completions", json={**request, "stream": True}) as response:
                lines = response.iter_lines()
                next(lines)
                until(lambda: in_flight(port, 2))
                process.send_signal(signal.SIGTERM)
                events = [line for line in lines if line]
            assert "server_stopping" in events[-2] and len(events) < 6
            refusal = whole.result()
        assert refusal.status_code == 503 and refusal.json()["error"]["code"] == "server_stopping"
        assert process.wait(timeout=PATIENCE) == 0


def test_a_notice_ends_it_like_a_signal_and_the_signal_that_comes_with_it_does_not_stop_it_at_once() -> None:
    """A machine that is taken away ends its processes too."""
    request = {"prompt": [1], "stream": True, "max_tokens": 20}
    with started(PATIENCE, PATIENCE) as (process, port):
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=request) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGUSR2)
            assert process.stderr is not None and process.stderr.readline() == STOPPING
            until(lambda: httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code != 200)
            process.send_signal(signal.SIGTERM)
            # It has been taken when it has answered: signals come first.
            assert httpx.get(f"http://127.0.0.1:{port}/health/live").status_code == 200
            process.send_signal(signal.SIGUSR1)
            assert "data: [DONE]" in list(lines)
        assert process.wait(timeout=PATIENCE) == 0


@pytest.mark.parametrize(
    ("signals", "drain", "left"),
    [
        ([signal.SIGUSR2], PATIENCE, 0.1),
        # Either may bring the end nearer that the other has begun.
        ([signal.SIGTERM, signal.SIGUSR2], PATIENCE, 0.1),
        ([signal.SIGUSR2, signal.SIGTERM], 0.1, PATIENCE),
    ],
)
def test_what_takes_longer_than_a_notice_or_a_signal_leaves_is_told_so(
    signals: list[signal.Signals], drain: float, left: float
) -> None:
    request = {"prompt": [1], "max_tokens": 20, "stream": True}
    with started(drain, left) as (process, port):
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=request) as response:
            lines = response.iter_lines()
            next(lines)
            for number in signals:
                process.send_signal(number)
                assert process.stderr is not None and process.stderr.readline().startswith("Stopping: 1 running")
            assert "server_stopping" in [line for line in lines if line][-2]
        assert process.wait(timeout=PATIENCE) == 0


def test_the_second_signal_after_a_notice_stops_at_once() -> None:
    body = {"prompt": [1], "max_tokens": 20, "stream": True}
    with (
        started(LONGER, LONGER) as (process, port),
        httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGUSR2)
        assert process.stderr is not None and process.stderr.readline().startswith("Stopping: 1 running")
        for _ in range(2):
            # It answers as long as it is not to stop at once.
            assert httpx.get(f"http://127.0.0.1:{port}/health/live").status_code == 200
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0
        assert process.stdout is not None and process.stdout.read() == "stopped\n"


def test_the_second_signal_stops_at_once() -> None:
    body = b'{"prompt": [1], "max_tokens": 20}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with started(LONGER) as (process, port), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head % len(body) + body)
        until(lambda: in_flight(port, 1))
        process.send_signal(signal.SIGINT)
        # The server takes no requests once it has taken the signal, but still waits for the one it has.
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code != 200)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, output) == (0, "stopped\n")
        assert "Traceback" not in errors
