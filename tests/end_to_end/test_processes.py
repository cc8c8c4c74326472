"""Processes: nothing survives its parent, nothing of the current directory is imported, a dead engine is replaced."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from penstock.assembly.__main__ import NICENESS
from support.http_server import free_port
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE, until


def engine_of(server: RunningServer) -> psutil.Process:
    (engine,) = psutil.Process(server.process.pid).children()
    return engine


def test_the_engine_does_not_outlive_a_killed_server(served_checkpoint: Path) -> None:
    with pytest.raises(AssertionError), serving(served_checkpoint, "--threads", "1") as server:
        engine = engine_of(server)
        os.kill(server.process.pid, signal.SIGKILL)
        engine.wait(timeout=PATIENCE)
    assert not engine.is_running()


def test_not_even_a_stopped_engine_outlives_a_killed_server(served_checkpoint: Path) -> None:
    with pytest.raises(AssertionError), serving(served_checkpoint, "--threads", "1") as server:
        engine = engine_of(server)
        engine.suspend()
        os.kill(server.process.pid, signal.SIGKILL)
        engine.wait(timeout=PATIENCE)
    assert not engine.is_running()


def test_a_killed_engine_is_replaced_and_answers_the_same(server: RunningServer) -> None:
    request = {"model": "tiny-llama", "prompt": "the fox", "max_tokens": 40, "seed": 7, "ignore_eos": True}

    def answer(server: RunningServer) -> object:
        return server.post("/v1/completions", request)["choices"]

    restarts = server.metric("penstock_engine_restarts_total")
    with ThreadPoolExecutor(8) as pool:
        engine, canary = engine_of(server), answer(server)
        engine.suspend()
        waiting = [pool.submit(answer, server) for _ in range(8)]
        server.wait_for("penstock_requests_in_flight", 8)
        # If that took long, it counts as stopped, and has been killed.
        with contextlib.suppress(psutil.NoSuchProcess):
            engine.kill()
        assert [each.result(timeout=PATIENCE) for each in waiting] == [canary] * 8
        server.wait_until_ready()
        assert engine_of(server).pid != engine.pid
        # Where there are fewer cores than threads, the server's short work comes before the engine's.
        assert engine_of(server).nice() == min(19, psutil.Process(server.process.pid).nice() + NICENESS)
        assert answer(server) == canary
        assert server.metric("penstock_engine_restarts_total") == restarts + 1


def test_a_signal_while_the_model_loads_leaves_nothing_behind(served_checkpoint: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(served_checkpoint), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    parent = psutil.Process(process.pid)
    until(lambda: parent.children() or process.poll() is not None)
    (engine,) = parent.children()
    server = RunningServer(f"http://127.0.0.1:{port}", process)

    def answers() -> bool:
        """If only that this is not the method: signals are handled from here on."""
        assert process.poll() is None
        try:
            server.post("/health/live", {})
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    until(answers)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 0
    assert not engine.is_running()


def test_nothing_is_imported_from_the_current_directory(served_checkpoint: Path, tmp_path: Path) -> None:
    for name in ("torch", "numpy", "msgspec", "tokenizers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this must not be imported')")
    (tmp_path / "main.py").write_text(
        "import asyncio, sys\n"
        "sys.path.remove(sys.path[0])\n"
        "from penstock import AsyncEngine\n"
        "async def main():\n"
        f"    async with await AsyncEngine.start({str(served_checkpoint)!r}, threads=1): print('served')\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert result.stdout == "served\n", result.stderr


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="another process's limits cannot be set here")
def test_an_engine_that_is_killed_while_descriptors_are_out_is_replaced_once_there_are_some(
    server: RunningServer,
) -> None:
    request = {"model": "tiny-llama", "prompt": "the fox", "max_tokens": 1500, "seed": 7, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        canary = server.post("/v1/completions", request)["choices"]
        process, engine = psutil.Process(server.process.pid), engine_of(server)
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        with httpx.Client(base_url=server.base) as client:
            assert client.get("/health/ready").status_code == 200
            waiting = pool.submit(server.post, "/v1/completions", request)
            server.wait_for("penstock_requests_in_flight", 1)
            # As many as it has: the engine's own end frees one, and a new one needs more.
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds() - 2, limits[1]))
            engine.kill()
            until(lambda: client.get("/health/ready").status_code != 200)
            time.sleep(1.0)
            assert client.get("/health/ready").status_code == 503
            assert client.get("/health/live").status_code == 200
            assert not [each for each in process.children() if each.status() != psutil.STATUS_ZOMBIE]
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        assert waiting.result(timeout=PATIENCE)["choices"] == canary
        server.wait_until_ready()
