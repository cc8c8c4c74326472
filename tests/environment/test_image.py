"""What the Dockerfiles name is there: what they copy is sent to the builder, and the package reads what they set."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
every = pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])


@every
def test_what_is_copied_is_there_and_sent_to_the_builder(name: str) -> None:
    lines = re.findall(r"^COPY (?!--from)(.+)$", (ROOT / name).read_text(), re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent
    assert [source for source in copied if not (ROOT / source).exists()] == []


@every
def test_the_package_reads_the_variables_that_the_image_sets(name: str) -> None:
    names = set(re.findall(r"\bPENSTOCK_[A-Z_]+(?==)", (ROOT / name).read_text()))
    assert names == {"PENSTOCK_CACHE", "PENSTOCK_DATA"}
    read = "".join(path.read_text() for path in (ROOT / "src" / "penstock").rglob("*.py"))
    assert [name for name in names if f'"{name}"' not in read] == []


@every
def test_the_extras_of_the_image_exist(name: str) -> None:
    [extras] = re.findall(r"^ARG EXTRAS=(\S+)$", (ROOT / name).read_text(), re.MULTILINE)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known) and ("cuda" in extras) == (name == "Dockerfile.cuda")


@every
def test_hadolint_has_nothing_to_say(name: str) -> None:
    command = [str(Path(sys.executable).with_name("hadolint")), str(ROOT / name)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (0, "")
