"""Replicas and gateways as processes, for tests of several of them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.http_server import free_port
from support.waiting import PATIENCE, SELDOM, until


@dataclass
class Process:
    """A replica or a gateway."""

    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def base(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def started(folder: Path, command: str, *options: str, port: int = 0) -> Iterator[Process]:
    """A process of `penstock`, which is ready, until the block ends; the block may end it."""
    port = port or free_port()
    log = folder / f"{command}-{port}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", command, "--port", str(port), *options],
            stdout=out,
            stderr=out,
            env={**os.environ, "PENSTOCK_DATA": str(folder / str(port)), "PENSTOCK_JOIN_TOKEN": "a token"},
        )
    try:
        if "--replica" in options or command != "gateway":
            until(lambda: is_ready(port, process), lambda: log.read_text(), pause=SELDOM)
        yield Process(port, process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(PATIENCE)


def waiting_for(folder: Path, silence: float = PATIENCE) -> tuple[str, str]:
    """Options of a gateway to which a replica is stale after `silence` seconds, however slow the machine is."""
    file = folder / f"silence-{silence:g}.toml"
    file.write_text(f"[timeouts]\nconnect = {PATIENCE}\nsilence = {silence}\n")
    return "--config", str(file)


def is_ready(port: int, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "it ended while it started"
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def under_way(server: Process) -> int:
    """Requests that a replica has, computed or waiting."""
    now = httpx.get(server.base + "/v1/stats", timeout=PATIENCE).json()["now"]
    return int(now["running"] + now["waiting"])


def fleet(passing: Process) -> dict[str, Any]:
    """What a gateway tells of its replicas and requests."""
    told: dict[str, Any] = httpx.get(passing.base + "/v1/fleet", timeout=PATIENCE).json()
    return told
