"""What is not Python in the package is listed for the wheel, and what is listed is there."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"


def test_every_file_of_the_package_gets_into_a_wheel() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["penstock"]
    matched = {pattern: {path for path in SOURCE.glob(pattern) if path.is_file()} for pattern in patterns}
    assert all(matched.values()), "a pattern that matches nothing"
    files = {path for path in SOURCE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == set().union(*matched.values())
