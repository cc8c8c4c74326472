"""docs/clients.md names the versions that are tried here; the tests of each agent take their settings from it."""

import json
from pathlib import Path

import pytest

from support.coding_agents import PAGE

PROGRAMS = Path(__file__).resolve().parent / "programs"
VERSIONS: dict[str, str] = json.loads((PROGRAMS / "package.json").read_text())["dependencies"]
for listed in ("aider.txt", "embedders.txt"):
    VERSIONS |= [line.split("==") for line in (PROGRAMS / listed).read_text().split()]


@pytest.mark.parametrize("package", VERSIONS)
def test_the_version_that_is_tried_is_told(package: str) -> None:
    (row,) = (line for line in PAGE.read_text(encoding="utf-8").splitlines() if f"`{package}` |" in line)
    assert f"| {VERSIONS[package]} |" in row
