"""Whether a run under `python -O` is what it is taken for: the package without assertions, the tests with theirs."""

import ast
import dis
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import penstock

PACKAGE = Path(penstock.__file__).parent
TESTS = Path(__file__).parents[1]


def asserts(code: CodeType) -> bool:
    """Whether compiled code, or a function in it, has an assertion: Python's own, or what pytest makes of it."""
    return any(
        instruction.opname == "LOAD_ASSERTION_ERROR" or instruction.argrepr.endswith("AssertionError")
        for instruction in dis.get_instructions(code)
    ) or any(asserts(constant) for constant in code.co_consts if isinstance(constant, CodeType))


def loaded(folder: Path) -> Iterator[tuple[Path, list[CodeType]]]:
    """The files of `folder` that functions of this process came from, and the code of those functions.

    None of what `gc.freeze` has put aside.
    """
    files: dict[str, list[CodeType]] = {}
    for value in gc.get_objects():
        # Not isinstance, which asks what stands in for another object.
        if type(value) is FunctionType and value.__code__.co_filename.startswith(f"{folder}/"):
            files.setdefault(value.__code__.co_filename, []).append(value.__code__)
    for name, codes in sorted(files.items()):
        yield Path(name), codes


def written(file: Path) -> bool:
    """Whether the source of a function in `file` has an assertion."""
    return any(
        isinstance(inner, ast.Assert)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    )


def why_not() -> str | None:
    """What keeps this run from showing that the package needs no assertions; None where it does show it."""
    if __debug__:
        return "Python itself runs with assertions; set PYTHONOPTIMIZE=1."
    child = subprocess.run([sys.executable, "-P", "-c", "raise SystemExit(__debug__)"], check=False)
    if child.returncode != 0:
        return "processes that the tests start have assertions; -O is not inherited, PYTHONOPTIMIZE=1 is."
    package, tests = dict(loaded(PACKAGE)), dict(loaded(TESTS))
    if not package or not tests:
        return "nothing was found that was loaded."
    for file, codes in package.items():
        if any(map(asserts, codes)):
            return f"{file} was loaded with its assertions."
    for file, codes in tests.items():
        if written(file) and not any(map(asserts, codes)):
            return f"{file} was loaded without its assertions, so its tests prove nothing."
    return None
