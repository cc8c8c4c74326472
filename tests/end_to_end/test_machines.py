"""An engine and a machine that joins it: the bits of one process, and again after either has ended."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from penstock.kernels.cpu.native import OBSTACLE
from support.http_server import free_port
from support.live_server import serving
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

BODY = {"prompt": "the fox", "max_tokens": 60, "temperature": 0, "seed": 7, "ignore_eos": True, "logprobs": 0}


@contextmanager
def _joined(model: Path, port: int, secret: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    arguments = [f"127.0.0.1:{port}", str(model), "--machine", "1", "--machines-secret-file", str(secret)]
    with log.open("wb") as out:
        command = [sys.executable, "-m", "penstock.cli.main", "join", *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_a_machine_that_joins_gives_the_bits_of_one_process(served_checkpoint: Path, tmp_path: Path) -> None:
    with serving(served_checkpoint, "--threads", "2") as alone:
        expected = alone.post("/v1/completions", BODY)["choices"]
    secret, port, log = tmp_path / "secret", free_port(), tmp_path / "log"
    secret.write_text("known to both")
    machines = ("--machines", "2", "--machines-at", f"127.0.0.1:{port}", "--machines-secret-file", str(secret))
    options = ("--pipeline-parallel-size", "2", "--threads", "2", *machines)
    with _joined(served_checkpoint, port, secret, log) as other, serving(served_checkpoint, *options) as server:
        assert server.post("/v1/completions", BODY)["choices"] == expected
        (engine,) = psutil.Process(server.process.pid).children()
        victims = [engine, *psutil.Process(other.pid).children()]
        assert len(victims) == 2
        for restarts, victim in enumerate(victims, 1):
            with ThreadPoolExecutor(4) as pool:
                victim.suspend()
                waiting = [pool.submit(server.post, "/v1/completions", BODY) for _ in range(4)]
                # All have to be under way: while the engine starts again, what comes new is refused.
                server.wait_for("penstock_requests_in_flight", 4)
                # If that took long, it counts as stopped, and has been killed.
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
                assert [each.result(timeout=PATIENCE)["choices"] for each in waiting] == [expected] * 4
            until(lambda restarts=restarts: server.metric("penstock_engine_restarts_total") == restarts)
            victims[1:] = psutil.Process(other.pid).children()
        assert "Waiting for the next engine" in log.read_text()


def test_a_machine_with_another_secret_is_told(served_checkpoint: Path, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.write_text("mine")
    theirs.write_text("theirs")
    port, log = free_port(), tmp_path / "log"
    machines = ("--machines", "2", "--machines-at", f"127.0.0.1:{port}", "--machines-secret-file", str(mine))
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(served_checkpoint), "--port", str(free_port())]
    with subprocess.Popen([*command, "--pipeline-parallel-size", "2", *machines]) as server:
        with _joined(served_checkpoint, port, theirs, log) as other:
            assert other.wait(PATIENCE) == 2
        assert "The secret is another one than the first machine's" in log.read_text()
        server.terminate()
