"""The scripts that are for a GPU run through, on one or under Triton's interpreter, and judge what they found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.device import DEVICE
from support.waiting import PATIENCE

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.cuda

TESTS = Path(__file__).resolve().parent.parent
SCRIPTS = TESTS.parent / "benchmarks"
# What is interpreted is so as in the other tests.
PROGRAM = """
import runpy, sys
import support.interpreter
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
GPU = "cuda" if DEVICE.type == "cpu" else str(DEVICE)


def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, str(SCRIPTS / f"gpu_{script}"), *arguments, "--device", GPU]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)


def test_rooflines_say_what_a_step_must_move(tmp_path: Path) -> None:
    sizes = ("--batch-sizes", "2", "--context", "5", "--steps", "3", "--warm-up", "1", "--prompts", "20", "--runs", "1")
    done = run("rooflines.py", "tiny", *sizes, "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    assert "| decode, batch 2, context 5 |" in done.stdout and "| prompt of 20 |" in done.stdout
    decode, prompt = json.loads((tmp_path / "figures.json").read_text())["figures"]
    # A layer's projections, with queries of 2 heads of 32 and keys and values of 1, and a head of 300 tokens.
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 64
    weights = 2 * (layer + 300 * 64)
    # Keys and values of 32 numbers: what is stored, and what is read with it.
    entry = 2 * 32 * 2
    assert decode["moved"] == pytest.approx(weights + 2 * entry * (7 + 8 + 9) / 3, abs=4 * entry)
    assert prompt["moved"] == pytest.approx(weights + entry * (20 + 20), abs=2 * entry)
    assert prompt["operations"] >= 2 * 20 * layer + 2 * 300 * 64
    assert decode["share"] > 0 and decode["seconds"] > 0


def test_stalls_are_judged() -> None:
    done = run("stalls.py", "tiny", "--streams", "2", "--tokens", "4", "--rounds", "2", "--pause", "0")
    assert done.returncode in (0, 1), done.stderr
    assert "At the most" in done.stdout, done.stderr
    worst = float(done.stdout.split("At the most ")[1].split(" ms")[0])
    assert (done.returncode == 0) == (worst <= 100)


@pytest.mark.slow
def test_a_model_is_compared_with_the_processors() -> None:
    sizes = ("--texts", "2", "--context", "40", "--answers", "2", "--tokens", "2")
    done = run("parity.py", "haiku-draft", *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same most likely token" in done.stdout and "tokens: 2 of 2" in done.stdout


@pytest.mark.slow
def test_transformers_run_beside() -> None:
    sizes = ("--batch-size", "2", "--context", "8", "--tokens", "3", "--rounds", "1", "--kv-cache-memory", "1000000")
    done = run("compare_transformers.py", "tiny", *sizes)
    assert done.returncode in (0, 1), done.stderr
    assert "transformers" in done.stdout and "ratio" in done.stdout, done.stderr
