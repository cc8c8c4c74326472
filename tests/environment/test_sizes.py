"""Files and functions of the package are short enough to be read at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"
MOST_LINES, MOST_FUNCTION_LINES = 500, 70
# What is longer, and why.
LONGER_FILES: dict[str, str] = {}
LONGER_FUNCTIONS: dict[str, str] = {}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a module by name, and how many lines it has."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield f"{path.relative_to(SOURCE)}: {node.name}", node.end_lineno - node.lineno + 1


def test_no_file_is_longer_but_those_with_a_reason() -> None:
    lines = {str(path.relative_to(SOURCE)): path.read_text().count("\n") for path in SOURCE.rglob("*.py")}
    assert len(lines) > 100
    assert {name for name, count in lines.items() if count > MOST_LINES} == set(LONGER_FILES)


def test_no_function_is_longer_but_those_with_a_reason() -> None:
    found = [each for path in SOURCE.rglob("*.py") for each in functions(path)]
    assert len(found) > 1000
    assert {name for name, count in found if count > MOST_FUNCTION_LINES} == set(LONGER_FUNCTIONS)
