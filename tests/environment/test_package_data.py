"""Nothing of the package is missing in a wheel: its builder takes every file that git does not ignore."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"


def test_every_file_of_the_package_gets_into_a_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert settings["wheel"] == {"packages": ["src/penstock"]}, "nothing is excluded"
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout, so nothing is ignored")
    files = [str(path) for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert any(file.endswith("haiku/model.safetensors") for file in files)
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    ignored = subprocess.run(command, input="\n".join(files), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.returncode == 1, f"git ignores {ignored.stdout}{ignored.stderr}"
