"""`python -O` takes `assert` away: guards are exceptions, and the tests that show them pass there too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import penstock

ROOT = Path(__file__).parents[2]
# The guards of every layer that needs no process or checkpoint of its own.
TESTS = [
    "tests/core",
    "tests/cache/test_pool.py",
    "tests/cache/test_manager.py",
    "tests/scheduler/test_scheduler.py",
    "tests/engine/test_core.py",
    "tests/engine/test_intake.py",
    "tests/engine/test_outputs.py",
    "tests/text/test_stops.py",
    "tests/models/test_config.py",
    "tests/server/test_requests.py",
    # Found only by what the simulation asserts.
    "tests/simulation/test_planted_bugs.py::test_a_planted_bug_is_found[lost_terminal_event]",
]


def optimized_pytest(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-O", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Said of code outside the tests, where no assertion is meant to guard anything.
    command += ["-W", "ignore:assertions not in test modules:pytest.PytestConfigWarning"]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_guards_hold_without_assertions() -> None:
    result = optimized_pytest(*TESTS)
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout


def test_tests_assert_there(tmp_path: Path) -> None:
    """Or the test above would prove nothing."""
    (tmp_path / "test_false.py").write_text("def test_false():\n    assert not __debug__\n    assert 1 == 2\n")
    result = optimized_pytest("--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path))
    assert result.returncode == 1 and "assert 1 == 2" in result.stdout


def assertions() -> Iterator[tuple[Path, ast.Assert]]:
    for file in sorted(Path(penstock.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                yield file, node


def test_assertions_tell_types_and_nothing_else() -> None:
    """Where one of these does not hold, the next line raises by itself."""
    for file, node in assertions():
        shown = ast.unparse(node.test)
        assert shown.endswith(" is not None") or shown.startswith("isinstance("), f"{file}:{node.lineno}: {shown}"
