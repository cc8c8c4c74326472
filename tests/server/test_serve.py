"""The listening socket, and the orderly end of a server process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.core.errors import AddressInUse, ConfigurationError
from penstock.server.serve import bind

STOPPING = "Stopping: 1 running requests may finish, for at most 30 s; a second signal ends them.\n"
ROOT = Path(__file__).parents[2]
PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from support.scripted_engine import ScriptedEngine
    from penstock.server.app import create_app
    from penstock.server.serve import bind, run_loop, serve

    engine = ScriptedEngine(None, range(5, 25))

    async def slow(call):
        await asyncio.sleep(float(sys.argv[2]))

    engine.before = slow
    listener = bind("127.0.0.1", int(sys.argv[1]))
    run_loop(serve(create_app(engine, None), listener, on_started=lambda: print("ready", flush=True)))
    print("stopped", flush=True)
    """
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(step: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process whose engine takes `step` seconds a token, and its port."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", PROGRAM, str(port), str(step)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process, port
        finally:
            process.kill()


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
    with started(0.03) as (process, port):
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=request) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert "data: [DONE]" in list(lines)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (0, "stopped\n", STOPPING)


def test_the_second_signal_stops_at_once() -> None:
    body = b'{"prompt": [1], "max_tokens": 20}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with started(60.0) as (process, port), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head % len(body) + body)
        while "penstock_requests_in_flight 1.0" not in httpx.get(f"http://127.0.0.1:{port}/metrics").text:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        # The server refuses connections once it has taken the signal, but still waits for the request.
        while is_open(port):
            time.sleep(0.02)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output) == (0, "stopped\n")
        assert "Traceback" not in errors


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
