"""The load generator and the server together: both keep to the protocol, and count the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.live_server import RunningServer
from support.waiting import PATIENCE


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_server_under_load_keeps_to_the_protocol(server: RunningServer, endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    before = server.metric("penstock_generation_tokens_total")
    turns, only = (2, ("--turns", "2")) if endpoint == "chat" else (1, ("--token-ids", "10-200"))
    options = (
        "--endpoint", endpoint, *only, "--rate", "40", "--burstiness", "0.5", "--requests", "40",
        "--input-len", "8-64", "--output-len", "4-24", "--ignore-eos", "--warmup", "2",
        "--slo", "ttft=300s,tpot=300s", "--extra-body", '{"return_token_ids": true}', "--json", str(file),
    )  # fmt: skip
    command = [sys.executable, "-m", "penstock.cli.main", "bench", "serve", server.base, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = json.loads(file.read_text())["stages"]
    summary = stage["summary"]
    assert (summary["succeeded"], summary["failed"], summary["short"]) == (40 * turns, 0, 0)
    assert summary["good"] == 40 * turns
    # What the warm-up and the first look at the server generated comes on top.
    assert server.metric("penstock_generation_tokens_total") - before > summary["output_tokens"] > 0
