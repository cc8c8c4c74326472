"""`penstock doctor` finds the bottleneck that was planted in a real server.

Whether there is a queue is judged over steps that the test counts; the slow tests put real load on real time.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.cli.doctor import ServerReport
from penstock.doctor.compare import compare
from penstock.doctor.diagnosis import Diagnosis, diagnose
from penstock.doctor.observation import observe
from penstock.doctor.server import look
from penstock.kernels.cpu.native import OBSTACLE
from penstock.observability.stats import Stats
from support.leaving import sent
from support.live_server import RunningServer, serving
from support.operator import Operator
from support.waiting import PATIENCE, SELDOM, until

SECONDS = 2.0


@contextlib.contextmanager
def load(server: RunningServer, *options: str, computed: tuple[str, int] = ("decode", 50)) -> Iterator[None]:
    """Put load on a server while the block runs, from when so many tokens of prompts or outputs were computed."""
    command = [sys.executable, "-m", "penstock.cli.main", "bench", "serve", server.base, *options]
    command += ["--token-ids", "10-200", "--duration", "120", "--warmup", "0", "--ignore-eos"]
    metric = f"penstock_{computed[0]}_tokens_total"
    before = server.metric(metric)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # The look at the server at its beginning is not the load yet.

        def is_loaded() -> bool:
            assert process.poll() is None, "there is no load"
            return server.metric(metric) >= before + computed[1]

        until(is_loaded, pause=SELDOM)
        yield
    finally:
        process.kill()
        process.wait(PATIENCE)


def diagnosed(server: RunningServer) -> Diagnosis:
    return diagnose(server.base, asyncio.run(look(server.base, None, SECONDS, lambda _: None)))


def applying(found: Diagnosis) -> set[int]:
    return {row.number for row in found.sheet if row.verdict == "applies"}


def states(found: Diagnosis) -> dict[str, str]:
    return {each.name: each.state for each in found.resources}


@pytest.fixture(scope="module")
def wide(served_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Operator]]:
    """A server that has eight sequences at a time, however slow its steps are, and its operator."""
    socket = tmp_path_factory.mktemp("admin") / "socket"
    options = ("--threads", "1", "--max-num-seqs", "8", "--target-itl", "60", "--admin-socket", str(socket))
    with serving(served_checkpoint, *options) as running:
        yield running, Operator(socket)


def diagnosed_in_steps(server: RunningServer, operator: Operator, running: int) -> Diagnosis:
    """What is found of 40 steps with eight requests, `running` of them, as if time passed in steps alone."""
    bodies = [
        {"prompt": [7 + number] * 16, "max_tokens": 200, "ignore_eos": True, "stream": True} for number in range(8)
    ]
    with operator.paused(), contextlib.ExitStack() as stack:
        for body in bodies:
            stack.enter_context(sent(server.base, "/v1/completions", body))
        server.wait_for("penstock_requests_waiting", 8)
        operator.step_until(lambda: server.metric("penstock_requests_running") == running)
        first = stats_of(server)
        operator.step(40)
        server.wait_for("penstock_engine_steps_total", first.life.steps.steps + 40)
        second = stats_of(server)
    passed = second.life.steps.since(first.life.steps).seconds
    return diagnose(server.base, observe(first, msgspec.structs.replace(second, uptime=first.uptime + passed)))


def stats_of(server: RunningServer) -> Stats:
    return msgspec.json.decode(server.get("/v1/stats"), type=Stats)


def test_a_queue_before_a_batch_of_one_and_where_the_bottleneck_moves(
    served_checkpoint: Path, wide: tuple[RunningServer, Operator], tmp_path: Path
) -> None:
    options = ("--threads", "1", "--max-num-seqs", "1", "--admin-socket", str(tmp_path / "socket"))
    with serving(served_checkpoint, *options) as narrow:
        before = diagnosed_in_steps(narrow, Operator(tmp_path / "socket"), 1)
    assert 1 in applying(before), before.sheet[0].why
    assert states(before)["rows"] == "saturated"
    known = {"memory reads", "arithmetic"} if OBSTACLE is None else set()
    assert {name for name in known if states(before)[name] == "unknown"} == set(), "the engine has measured its machine"
    assert "from 1 to 2" in str(before.sheet[0].advice)
    after = diagnosed_in_steps(*wide, 8)
    comparison = compare(before, after)
    assert 1 in comparison.gone, after.sheet[0].why
    assert states(after)["rows"] != "saturated"
    changes = {change.name: change for change in comparison.changes}
    assert changes["queue p50"].before and changes["queue p50"].after


@pytest.mark.slow
def test_a_pool_that_is_too_small_and_prefixes_that_are_not_kept(served_checkpoint: Path) -> None:
    options = ("--kv-cache-memory", "1200KB", "--max-model-len", "512", "--no-enable-prefix-caching", "--threads", "1")
    many = ("--concurrency", "16", "--input-len", "128", "--output-len", "256")
    alike = ("--concurrency", "2", "--prefix-len", "450", "--input-len", "8", "--output-len", "2")
    with serving(served_checkpoint, *options) as small:
        with load(small, *many):
            found = diagnosed(small)
        assert {4} <= applying(found) and 1 not in applying(found), found.sheet[3].why
        assert states(found)["KV memory"] == "saturated"
        assert found.sheet[3].advice is not None and "--kv-cache-memory" in found.sheet[3].advice
        small.wait_for("penstock_requests_in_flight", 0)
        with load(small, *alike):
            found = diagnosed(small)
    assert 3 in applying(found), found.sheet[2].why


@pytest.mark.slow
def test_prefixes_that_repeat_and_are_kept(server: RunningServer) -> None:
    with load(server, "--concurrency", "4", "--prefix-len", "1500", "--input-len", "8", "--output-len", "2"):
        found = diagnosed(server)
    assert found.sheet[2].verdict == "does not apply" and "from the cache" in found.sheet[2].why


@pytest.mark.slow
def test_long_prompts_beside_streams() -> None:
    streams = ("--concurrency", "4", "--input-len", "16", "--output-len", "512", "--seed", "1")
    prompts = ("--concurrency", "1", "--input-len", "1800", "--output-len", "8", "--seed", "2")
    # Steps are as long as they become: nothing cuts the prompts.
    with (
        serving(None, "--target-itl", "60", "--max-num-batched-tokens", "2048", "--threads", "1") as patient,
        load(patient, *streams),
        load(patient, *prompts, computed=("prefill", 2500)),
    ):
        found = diagnosed(patient)
    assert 2 in applying(found), found.sheet[1].why
    assert found.sheet[1].advice is not None and "--target-itl" in found.sheet[1].advice


def test_a_server_that_nobody_uses(wide: tuple[RunningServer, Operator]) -> None:
    server, _ = wide
    server.wait_for("penstock_requests_in_flight", 0)
    command = [sys.executable, "-m", "penstock.cli.main", "doctor", "--json", "--seconds", "1", "--url", server.base]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=ServerReport).diagnosis
    assert found.bottleneck.resource is None
    assert applying(found) == set()
