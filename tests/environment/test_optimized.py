"""`python -O` takes `assert` away: guards are exceptions, and the tests that show them pass there too."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from support.optimized import asserts, why_not, written

ROOT = Path(__file__).parents[2]
# The guards of what is at the bottom; `make soak` has all tests.
TESTS = [
    "tests/core",
    "tests/cache/test_pool.py",
    "tests/cache/test_manager.py",
    "tests/scheduler/test_scheduler.py",
    "tests/engine/test_core.py",
    "tests/engine/test_intake.py",
    "tests/engine/test_outputs.py",
    "tests/text/test_stops.py",
    # Found only by what the simulation asserts.
    "tests/simulation/test_planted_bugs.py::test_a_planted_bug_is_found[lost_terminal_event]",
]
SOURCE = "def function(value):\n    return [lambda: inner() for inner in value]\n"
ASSERTION = "def function(value):\n    def inner():\n        assert value\n    return inner\n"


def optimized_pytest(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--optimized", *arguments]
    environment = {**os.environ, "PYTHONOPTIMIZE": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def test_guards_hold_without_assertions(tmp_path: Path) -> None:
    """What asserts something false beside them fails, and nothing else does."""
    (tmp_path / "test_false.py").write_text("def test_false():\n    assert not __debug__\n    assert 1 == 2\n")
    result = optimized_pytest("-c", "pyproject.toml", *TESTS, str(tmp_path))
    assert result.returncode == 1 and "assert 1 == 2" in result.stdout, result.stdout[-4000:]
    assert re.search(r"^1 failed, [1-9]\d{2,} passed", result.stdout, re.MULTILINE), result.stdout[-4000:]


def test_a_run_whose_tests_do_not_assert_is_refused() -> None:
    # Without its own assertions, schemathesis takes every test for one of its own.
    plain = ("--assert=plain", "-W", "ignore::pytest.PytestConfigWarning", "-p", "no:schemathesis")
    result = optimized_pytest(*plain, "tests/core/test_kv.py")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_kv.py was loaded without its assertions" in result.stderr


@pytest.mark.skipif(not __debug__, reason="this run is without them")
def test_a_run_with_assertions_is_told_from_one_without() -> None:
    assert "PYTHONOPTIMIZE" in (why_not() or "")


def test_assertions_are_found_in_what_was_compiled(tmp_path: Path) -> None:
    for source, optimize, found in ((SOURCE, 0, False), (ASSERTION, 0, True), (ASSERTION, 1, False)):
        assert asserts(compile(source, "file", "exec", optimize=optimize)) == found
        (tmp_path / "file").write_text(source)
        assert written(tmp_path / "file") == (source == ASSERTION)


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
