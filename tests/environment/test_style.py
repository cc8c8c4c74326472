"""The check of documents and docstrings finds what its rules name, and where."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_style", ROOT / "scripts" / "check_style.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_style"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


check = load_check()
DOCUMENTS = check.Documents(most_words=5, most_characters=40, phrases={"so many": "the number", "whoever": "who"})
RULES = """
[documents]
paths = ["*.md"]
most_words = 5
most_characters = 80
unfinished = [%s]
phrases = {nobody = "no client"}
[docstrings]
paths = ["src/**/*.py"]
fewest_words = 5
unfinished = [%s]
"""


def found(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.message.split("”")[0].split(" (")[0]) for fault in DOCUMENTS.faults(text)]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("One two three four five.", []),
        ("One two three four five six.", [(1, "a sentence of 6 words")]),
        ("Two words. One two three four\nfive. One two\nthree four five six.", [(2, "a sentence of 6 words")]),
        ("One two\nthree? Four five six.\n\n- One two three\n  four five six", [(4, "a sentence of 6 words")]),
        ("Run `penstock serve --port 8000` or [it](that/way) now.", [(1, "55 characters; at most 40 outside tables")]),
        ("It is 3.5 times\nas fast, e.g. here", [(1, "a sentence of 8 words")]),
        ("# So\n\nThere, *so\nmany* stay.", [(3, "“so many")]),
        ("Whoever\nasks whoever.", [(1, "“whoever"), (2, "“whoever")]),
        ("So manyfold; `so many`.\n\n```\nwhoever writes so many words as are here\n```", []),
        ("| a | b |\n|---|---|\n| one two three four five six seven eight nine | whoever |",
         [(3, "a sentence of 9 words"), (3, "“whoever")]),
    ],
)  # fmt: skip
def test_faults_of_documents(text: str, faults: list[tuple[int, str]]) -> None:
    assert found(text) == faults


def test_docstrings_that_say_little() -> None:
    source = '''
class Kept:
    """Of which more is said below."""

    def short(self):
        """Says nothing."""

    def endpoint(self):
        """`GET /v1/models`"""

    def without(self):
        def inner():
            """Not public."""

    def _private(self):
        """Not public."""

if True:
    class Said:
        """A class."""

class _Private:
    def inside(self):
        """Not public."""
'''
    faults = check.Docstrings(fewest_words=5).faults(source)
    assert [(fault.line, fault.message) for fault in faults] == [
        (5, "short's docstring says little: “Says nothing.”"),
        (19, "Said's docstring says little: “A class.”"),
    ]


def complaints(root: Path, unfinished: str = "", packages: str = "", named: tuple[Path, ...] = ()) -> list[str]:
    scopes = check.read_scopes(root, RULES % (unfinished, packages))
    return [complaint for scope in scopes for complaint in scope.complaints(named)]


def test_what_is_unfinished_is_excused_until_it_passes(tmp_path: Path) -> None:
    (tmp_path / "src" / "room").mkdir(parents=True)
    (tmp_path / "good.md").write_text("Short.\n")
    (tmp_path / "bad.md").write_text("Short.\nNobody is.\n")
    (tmp_path / "src" / "room" / "module.py").write_text('def it():\n    """It."""\n')
    bad = ["bad.md:2: “nobody”; say no client"]
    room = ["src/room/module.py:1: it's docstring says little: “It.”"]
    assert complaints(tmp_path) == bad + room
    assert complaints(tmp_path, '"bad.md"') == room
    assert complaints(tmp_path, '"bad.md"', '"src/room"') == []
    assert complaints(tmp_path, '"bad.md"', '"src/room"', (tmp_path / "bad.md",)) == bad
    assert complaints(tmp_path, '"bad.md", "good.md", "gone.md"', '"src/room"') == [
        "good.md: is not there or passes; take it out of `unfinished` in style.toml",
        "gone.md: is not there or passes; take it out of `unfinished` in style.toml",
    ]


def test_the_rules_that_stand_hold_for_documents_and_for_the_package() -> None:
    documents, docstrings = check.read_scopes(ROOT, check.RULES.read_text())
    assert {ROOT / "README.md", ROOT / "docs" / "serve.md"} <= set(documents.files())
    assert ROOT / "src" / "penstock" / "llm.py" in docstrings.files()
