"""`penstock serve` where nothing can be written: it starts, says so once, and serves."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from support.http_server import free_port
from support.live_server import RunningServer
from support.small_disk import small_disk
from support.waiting import PATIENCE

REQUEST = {"prompt": "the fox", "max_tokens": 20, "temperature": 0, "ignore_eos": True}


@contextlib.contextmanager
def serving(model: Path, stderr: IO[Any] | int, *options: str) -> Iterator[RunningServer]:
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(model), "--port", str(port), "--threads", "1"]
    process = subprocess.Popen([*command, *options], stderr=stderr, stdout=stderr)
    try:
        server = RunningServer(f"http://127.0.0.1:{port}", process)
        server.wait_until_ready()
        yield server
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def check_serves(server: RunningServer) -> None:
    for _ in range(20):
        usage: Any = server.post("/v1/completions", REQUEST)["usage"]
        assert usage["completion_tokens"] == 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_log_without_room(served_checkpoint: Path) -> None:
    with Path("/dev/full").open("wb") as full, serving(served_checkpoint, full) as server:
        check_serves(server)


def test_a_log_whose_reader_has_gone(served_checkpoint: Path) -> None:
    with subprocess.Popen(["head", "-c", "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        with serving(served_checkpoint, reader.stdin) as server:
            reader.stdin.close()
            check_serves(server)


def test_a_start_on_a_full_disk(served_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk") as disk, (tmp_path / "log").open("w+") as log:
        disk.fill()
        # Nobody asked for these folders: what cannot be kept is told.
        monkeypatch.setenv("PENSTOCK_CACHE", str(disk.path / "cache"))
        monkeypatch.setenv("PENSTOCK_DATA", str(disk.path / "data"))
        monkeypatch.setenv("TMPDIR", str(disk.path))
        with serving(served_checkpoint, log) as server, httpx.Client(base_url=server.base) as http:
            check_serves(server)
            assert http.get("/health/ready").json() == {"status": "ready", "storage": "off"}
            answer = http.get("/v1/files")
            assert answer.status_code == 404 and "its start said why" in answer.json()["error"]["message"]
        log.seek(0)
        text = log.read()
        assert text.count("could not be kept in") == text.count("No files are kept") == 1
        assert "Traceback" not in text
