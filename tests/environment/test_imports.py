"""The rules between rooms, as import-linter and a look at the source see them."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
PURE_ROOMS = ("core", "configuration", "planning", "cache", "scheduler", "routing", "metering")

# All of them are arithmetic, containers or syntax: nothing here knows the time, the machine or another process.
PURE_IMPORTS = {
    "abc", "array", "bisect", "collections", "contextlib", "dataclasses", "decimal", "difflib", "enum", "fractions",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "msgspec", "operator", "penstock", "re", "struct",
    "types", "typing",
}  # fmt: skip
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "dill", "cloudpickle", "joblib", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def unsafe_constructs(tree: ast.AST) -> list[str]:
    """Whatever in a module could run code that came as data."""
    found = [name for name in imported_modules(tree) if name.split(".")[0] in UNSAFE_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in UNSAFE_CALLS:
                found.append(called.id)
            if isinstance(called, ast.Attribute) and ast.unparse(called) in {"torch.load", "torch.save"}:
                found.append(ast.unparse(called))
    return found


def source_files(*rooms: str) -> list[Path]:
    folders = [SOURCE / room for room in rooms] if rooms else [SOURCE]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    # -S and -I would hide the package; a fresh interpreter is needed because this one has imported torch.
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "src", check=False)


def test_import_contracts_hold() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    result = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_unpickles_or_evaluates() -> None:
    found = {str(path): unsafe_constructs(ast.parse(path.read_text())) for path in source_files()}
    assert {path: constructs for path, constructs in found.items() if constructs} == {}


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "import dill.source", "eval('1')", "exec(x)", "torch.load(path)"],
)
def test_unsafe_constructs_are_seen(source: str) -> None:
    assert unsafe_constructs(ast.parse(source))


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        *((f"import {name}\n", "TID251") for name in sorted(UNSAFE_MODULES - {"cPickle"})),
        ("from pickle import loads\n", "TID251"),
        ("import torch\n\ntorch.load(path)\n", "TID251"),
        ("from torch import load\n", "TID251"),
        ("import numpy as np\n\nnp.load(path)\n", "TID251"),
        ("import pickle\n\npickle.loads(data)\n", "S301"),
        ("import marshal\n\nmarshal.loads(data)\n", "S302"),
        ("eval(text)\n", "S307"),
        ("exec(text)\n", "S102"),
    ],
)
def test_the_linter_refuses_them_too(source: str, rule: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    command += ["--stdin-filename", str(SOURCE / "core" / "anything.py"), "-"]
    result = subprocess.run(command, input=source, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and f" {rule} " in result.stdout, result.stdout + result.stderr


def test_every_room_has_its_place_in_the_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rooms,) = [contract["layers"] for contract in contracts if contract["id"] == "rooms"]
    found = {f"penstock.{path.parent.name}" for path in SOURCE.glob("*/__init__.py")} | {"penstock.llm"}
    assert set(rooms) == found and len(rooms) == len(found)


def test_pure_rooms_import_only_what_is_listed() -> None:
    for path in source_files(*PURE_ROOMS):
        # Of urllib, what takes a URL apart is syntax.
        names = set(imported_modules(ast.parse(path.read_text()))) - {"urllib.parse"}
        roots = {name.split(".")[0] for name in names}
        # A fit of coefficients is linear algebra.
        roots -= {"numpy"} if path.name == "fitting.py" else set()
        assert roots <= PURE_IMPORTS, f"{path} imports {roots - PURE_IMPORTS}"


def test_what_pure_rooms_may_import_is_standard_and_not_forbidden() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = [contract for contract in contracts if contract["id"] == "pure"]
    assert set(pure["source_modules"]) == {f"penstock.{room}" for room in PURE_ROOMS}
    standard = sys.stdlib_module_names - set(pure["forbidden_modules"])
    assert standard | {"msgspec", "penstock"} >= PURE_IMPORTS


def test_importing_the_package_imports_nothing_heavy() -> None:
    result = run_python("import penstock, sys; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert not loaded & {"torch", "numpy", "msgspec", "fastapi", "tokenizers", "transformers"}


def test_only_what_serves_imports_what_databases_need() -> None:
    result = run_python("import penstock.cli.main, penstock.cli.serve_options, penstock.llm, sys; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    assert not {name.split(".")[0] for name in result.stdout.split()} & {"sqlalchemy", "alembic", "psycopg"}


@pytest.mark.parametrize(
    "room", [*PURE_ROOMS, "engine", "simulation", "layers", "models", "text", "server", "observability", "doctor"]
)
def test_rooms_work_without_torch(room: str) -> None:
    code = f"""
import importlib, pkgutil, sys
sys.modules["torch"] = None
package = importlib.import_module("penstock.{room}")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_what_starts_other_ranks_needs_no_torch() -> None:
    """They begin with their imports while the first one is at its own."""
    result = run_python("import sys; sys.modules['torch'] = None; import penstock.assembly.links")
    assert result.returncode == 0, result.stderr


def test_public_names_are_importable_lazily() -> None:
    names = "LLM, AsyncEngine, SamplingParams"
    result = run_python(f"from penstock import {names}; print({names})")
    assert result.returncode == 0, result.stderr
    result = run_python("import penstock; penstock.nothing")
    assert "module 'penstock' has no attribute 'nothing'" in result.stderr
