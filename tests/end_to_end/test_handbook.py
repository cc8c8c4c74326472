"""The commands of the handbook's diagnosis find the fault that they plant, and see it gone."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.cli.doctor import ServerReport
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "handbook" / "diagnosis.md"
PENSTOCK = (sys.executable, "-m", "penstock.cli.main")


def commands(name: str) -> list[list[str]]:
    """What stands behind the name of a command in the page's blocks, each time."""
    return [shlex.split(words) for words in re.findall(rf"^penstock {name} (.*)$", PAGE.read_text(), re.MULTILINE)]


def looked(server: RunningServer, load: list[str], *options: str) -> ServerReport:
    """What doctor finds while a server has the page's load."""
    command = [*PENSTOCK, "bench", "serve", server.base, *load[1:]]
    loading = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: server.metric("penstock_decode_tokens_total") > 200)
        command = [*PENSTOCK, "doctor", "--url", server.base, "--seconds", "4", "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    finally:
        loading.kill()
        loading.wait(PATIENCE)
    return msgspec.json.decode(done.stdout, type=ServerReport)


@pytest.mark.slow
def test_the_planted_fault_is_found_and_then_gone(tmp_path: Path) -> None:
    (before_model, *before), (after_model, *after) = commands("serve")
    assert before_model == after_model == "haiku"
    first_load, second_load = commands("bench serve")
    with serving(None, *before) as server:
        first = looked(server, first_load)
    row = first.diagnosis.sheet[0]
    assert row.verdict == "applies" and row.advice is not None and "from 1 to 2" in row.advice, row.why
    report = tmp_path / "before.json"
    report.write_bytes(msgspec.json.encode(first))
    with serving(None, *after) as server:
        second = looked(server, second_load, "--compare", str(report))
    assert second.comparison is not None and 1 in second.comparison.gone, second.diagnosis.sheet[0].why
    tokens = next(change for change in second.comparison.changes if change.name == "output tokens")
    assert tokens.better
