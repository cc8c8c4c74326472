"""The commands with which the operations page leads from nothing to a fleet, as it has them."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.http_server import free_port
from support.waiting import PATIENCE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "README.md"


def commands() -> list[str]:
    """Those of the page's first listing, a line each."""
    [listing] = re.findall(
        r"^## A fleet on one machine$.*?^```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return str(listing).splitlines()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_five_commands_lead_to_a_fleet(tmp_path: Path) -> None:
    install, *others = commands()
    assert install == "make .venv/.serve" and len(others) == 4
    # The environment that this test runs in was made by that command.
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    port = str(free_port())
    script = "\n".join(others).replace("8080", port)
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "told"))
    environment = {**os.environ, "PENSTOCK_DATA": str(tmp_path / "data"), "NOTIFY_SOCKET": str(tmp_path / "told")}
    try:
        done = subprocess.run(
            ["bash", "-e"],
            input=script,
            text=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=PATIENCE,
        )
        log = (tmp_path / "fleet.log").read_text()
        assert done.returncode == 0, (done.stderr, log)
        assert '"role":"assistant"' in done.stdout.replace(" ", ""), (done.stdout, log)
        assert re.search(r"haiku", done.stdout.rpartition("}")[2]), done.stdout
        # The fleet says so once, and its processes do not, as systemd wants to know (`Type=notify`).
        told.settimeout(PATIENCE)
        assert told.recv(99) == b"READY=1"
        told.setblocking(False)
        with pytest.raises(BlockingIOError):
            told.recv(99)
    finally:
        told.close()
        ended = subprocess.run(
            [tmp_path / ".venv" / "bin" / "penstock", "fleet", "down"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert ended.returncode == 0, ended.stderr
