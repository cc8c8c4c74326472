"""`penstock fleet autoscale` with a gateway, and a script that starts and ends servers, as a person would write one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from support.processes import Process, started
from support.waiting import PATIENCE, SELDOM, until

TOKEN = {"PENSTOCK_JOIN_TOKEN": "a token"}
# One server at most. Its process is found by a file, and what it says is not waited for.
SCRIPT = """
import os, signal, subprocess, sys
number, gateway, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if number:
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "haiku", "--port", "0", "--data-dir", "off"]
    out = open(f"{folder}/server.log", "ab")
    server = subprocess.Popen([*command, "--join", gateway], stdout=out, stderr=out, start_new_session=True)
    open(f"{folder}/pid", "w").write(str(server.pid))
else:
    os.kill(int(open(f"{folder}/pid").read()), signal.SIGTERM)
    os.unlink(f"{folder}/pid")
"""


def is_live(gateway: Process) -> bool:
    try:
        return httpx.get(f"{gateway.base}/health/live", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def test_a_request_has_a_server_started_that_ends_when_none_comes(tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(SCRIPT)
    (tmp_path / "gateway.toml").write_text('expect = ["haiku"]\n[hold]\nseconds = 300.0\n')
    (tmp_path / "fleet.toml").write_text(
        '[[model]]\nname = "haiku"\nreplicas = { least = 0, most = 1 }\ndown_seconds = 1.0\n'
    )
    log = tmp_path / "autoscale.log"
    with started(tmp_path, "gateway", "--config", str(tmp_path / "gateway.toml")) as gateway, log.open("w") as errors:
        command = f"{sys.executable} {tmp_path}/scale.py {{replicas}} {gateway.base} {tmp_path}"
        deciding = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock.cli.main", "fleet", "autoscale", str(tmp_path / "fleet.toml")),
                *("--gateway", gateway.base, "--exec", command),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **TOKEN, "PENSTOCK_DATA": str(tmp_path / "data")},
        )
        try:
            until(lambda: is_live(gateway), pause=SELDOM)
            body = {"model": "haiku", "prompt": "The rain", "max_tokens": 3}
            answered = httpx.post(f"{gateway.base}/v1/completions", json=body, timeout=PATIENCE)
            assert answered.status_code == 200, answered.text + log.read_text()
            assert deciding.stdout is not None
            told = [deciding.stdout.readline(), deciding.stdout.readline()]
            assert not (tmp_path / "pid").exists()
            deciding.send_signal(signal.SIGTERM)
            assert deciding.wait(PATIENCE) == 0
        finally:
            deciding.kill()
            deciding.communicate(timeout=PATIENCE)
            if (tmp_path / "pid").exists():
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    changes = [json.loads(line) for line in told]
    assert [(each["model"], each["before"], each["replicas"]) for each in changes] == [("haiku", 0, 1), ("haiku", 1, 0)]
    assert "wait" in changes[0]["why"]
    # What hours needed is there for the next one.
    assert json.loads((tmp_path / "data" / "fleets" / "fleet" / "habits.json").read_text())["models"]["haiku"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    def told(*arguments: str, **environment: str) -> str:
        command = [sys.executable, "-m", "penstock.cli.main", "fleet", "autoscale", str(tmp_path / "fleet.toml")]
        without = {name: value for name, value in os.environ.items() if name not in TOKEN}
        ended = subprocess.run([*command, *arguments], capture_output=True, text=True, env={**without, **environment})
        assert ended.returncode == 2
        return ended.stderr

    (tmp_path / "fleet.toml").write_text('[[model]]\nname = "haiku"\nreplicas = 2\n')
    assert "set PENSTOCK_JOIN_TOKEN" in told("--gateway", "http://127.0.0.1:1")
    assert "name each with --gateway" in told(**TOKEN)
    assert "whose number of replicas may change" in told("--gateway", "http://127.0.0.1:1", **TOKEN)
    assert "does not say the number" in told("--gateway", "http://127.0.0.1:1", "--exec", "true", **TOKEN)
