"""Where torch's threads are told how to wait: where a process starts, and nowhere else."""

import subprocess
import sys

import pytest

# Tells the variable when the process ends, however it does.
AT_THE_END = "import atexit, os; atexit.register(lambda: print(os.environ.get('GOMP_SPINCOUNT', 'not set')))"


def variable_after(code: str) -> str:
    """What it is at the end of a process that runs `code` and began with an empty environment."""
    command = [sys.executable, "-c", f"{AT_THE_END}\n{code}"]
    return subprocess.run(command, env={}, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


@pytest.mark.parametrize("module", ["penstock.assembly.prepare", "penstock.llm", "penstock.cli.main"])
def test_an_import_leaves_the_environment_alone(module: str) -> None:
    assert variable_after(f"import {module}") == "not set"


def test_the_command_line_says_it() -> None:
    code = "import sys\nsys.argv = ['penstock', '--version']\nfrom penstock.cli.main import main\nmain()"
    assert variable_after(code) == "5000"
