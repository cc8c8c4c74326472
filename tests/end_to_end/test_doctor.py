"""`penstock doctor` finds the bottleneck that was planted in a real server under real load."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.cli.doctor import ServerReport
from penstock.doctor.diagnosis import Diagnosis, diagnose
from penstock.doctor.server import look
from penstock.kernels.cpu.native import OBSTACLE
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE, until

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

        until(is_loaded)
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


def test_a_queue_before_a_batch_of_one_and_where_the_bottleneck_moves(
    served_checkpoint: Path, server: RunningServer, tmp_path: Path
) -> None:
    many = ("--input-len", "16", "--output-len", "64", "--concurrency", "8")
    command = [sys.executable, "-m", "penstock.cli.main", "doctor", "--json", "--seconds", str(SECONDS), "--url"]
    with serving(served_checkpoint, "--threads", "1", "--max-num-seqs", "1") as narrow, load(narrow, *many):
        done = subprocess.run([*command, narrow.base], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    before = msgspec.json.decode(done.stdout, type=ServerReport).diagnosis
    assert 1 in applying(before), before.sheet[0].why
    assert states(before)["rows"] == "saturated"
    known = {"memory reads", "arithmetic"} if OBSTACLE is None else set()
    assert {name for name in known if states(before)[name] == "unknown"} == set(), "the engine has measured its machine"
    assert "from 1 to 2" in str(before.sheet[0].advice)
    (tmp_path / "before.json").write_text(done.stdout)
    with load(server, *many):
        options = ("--compare", str(tmp_path / "before.json"))
        done = subprocess.run([*command, server.base, *options], capture_output=True, text=True, timeout=PATIENCE)
    report = msgspec.json.decode(done.stdout, type=ServerReport)
    assert report.comparison is not None and 1 in report.comparison.gone
    assert states(report.diagnosis)["rows"] != "saturated"
    changes = {change.name: change for change in report.comparison.changes}
    assert changes["queue p50"].better, "nobody waits for a row any more"


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


def test_a_server_that_nobody_uses(server: RunningServer) -> None:
    server.wait_for("penstock_requests_in_flight", 0)
    found = diagnosed(server)
    assert found.bottleneck.resource is None
    assert applying(found) == set()
