"""The units of systemd: systemd takes them, they are confined, and what they start exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from penstock.cli.main import app
from penstock.server.serve import DRAIN_SECONDS

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS = ["penstock-fleet.service", "penstock@.service"]
every = pytest.mark.parametrize("unit", UNITS)
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None and not os.environ.get("CI"), reason="systemd-analyze is missing")


def analyze(*arguments: str) -> str:
    """What systemd-analyze says, which is a failure where it refuses."""
    assert ANALYZE is not None, "install systemd, whose systemd-analyze reads units"
    told = subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout + told.stderr


@needs_systemd
@every
def test_systemd_takes_it_and_finds_it_confined(unit: str, tmp_path: Path) -> None:
    """It looks for the command, too, which is that of this environment here."""
    text = (FOLDER / unit).read_text().replace("/opt/penstock/bin/", f"{Path(sys.executable).parent}/")
    path = tmp_path / unit.replace("@", "@haiku")
    path.write_text(text)
    assert analyze("verify", "--man=no", str(path)) == ""
    [exposure] = re.findall(
        r"Overall exposure level for \S+: ([0-9.]+)", analyze("security", "--offline=true", str(path))
    )
    assert float(exposure) < 3.0


@every
def test_what_it_starts_exists_and_has_time_to_end(unit: str) -> None:
    text = (FOLDER / unit).read_text()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    started = re.findall(r"^Exec\w+=/opt/penstock/bin/penstock (.+)$", text, re.MULTILINE)
    for line in started:
        name, *arguments = line.replace("$MODEL $OPTIONS", "haiku --port 8000 --slo ttft=1s").split()
        command = commands[name]
        if name == "fleet":
            name, *arguments = arguments
            command = command.commands[name]
        found = command.make_context(name, arguments).params
        assert str(found.get("file", found.get("model"))) in ("/etc/penstock/fleet.toml", "haiku")
    # What runs has its time before systemd kills it, and what comes after has, too.
    [minutes] = re.findall(r"^TimeoutStopSec=(\d+)min$", text, re.MULTILINE)
    assert started and "Type=notify" in text and 60 * int(minutes) >= DRAIN_SECONDS + (60 if "fleet" in unit else 20)
    # Each variable of a place that it may write to.
    places = dict(each.split("=") for each in re.findall(r"^Environment=(.+)$", text, re.MULTILINE)[0].split())
    assert set(places) == {"HOME", "PENSTOCK_DATA", "PENSTOCK_CACHE", "HF_HOME"}
    assert all(each.startswith(("/var/lib/penstock", "/var/cache/penstock")) for each in places.values())


def test_the_user_is_made() -> None:
    assert re.search(r"^u penstock ", (FOLDER / "penstock.sysusers").read_text(), re.MULTILINE)
    assert all("\nUser=penstock\n" in (FOLDER / unit).read_text() for unit in UNITS)
