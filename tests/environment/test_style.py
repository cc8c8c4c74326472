"""The check of documents, docstrings and comments finds what its rules name, and where."""

from pathlib import Path
from typing import Any

import pytest

from support.scripts import ROOT, load_script

check = load_script("check_style")
PHRASES = check.Phrases({"so many": "the number", "whoever": "who"})
DOCUMENTS = check.Documents(PHRASES, most_words=5, most_characters=40)
MODULES = check.Modules(PHRASES, fewest_words=5)
RULES = """
[phrases]
nobody = "no client"
[documents]
paths = ["*.md"]
most_words = 5
most_characters = 80
[modules]
paths = ["src/**/*.py"]
fewest_words = 5
"""


def found(faults: list[Any]) -> list[tuple[int, str]]:
    return [(fault.line, fault.message.split("”")[0].split(" (")[0]) for fault in faults]


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
    assert found(DOCUMENTS.faults(text)) == faults


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
    assert [(fault.line, fault.message) for fault in MODULES.faults(source)] == [
        (5, "short's docstring says little: “Says nothing.”"),
        (19, "Said's docstring says little: “A class.”"),
    ]


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ('"""Of a module, for\nwhoever reads it."""', [(2, "“whoever")]),
        ('def _private():\n    """Takes so\n    many of them."""', [(2, "“so many")]),
        ('class It:\n    field = 1\n    """How it is with so many."""', [(3, "“so many")]),
        ("# Takes so\n# many of them.\nvalue = 1  # whoever asks", [(1, "“so many"), (3, "“whoever")]),
        ("value = 1  # so\nother = 2\n# many", []),
        ("value = 1  # it takes so\n# many", [(1, "“so many")]),
        ('"""Of `whoever` and\n`so\nmany`; whoever."""\n# `so many`: whoever', [(3, "“whoever"), (4, "“whoever")]),
        ('value = "so many"\nprint("whoever # whoever")\nso_many = 1', []),
    ],
)  # fmt: skip
def test_phrases_in_docstrings_and_comments(source: str, faults: list[tuple[int, str]]) -> None:
    assert found(MODULES.faults(source)) == faults


def test_all_files_are_checked_or_those_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "src" / "room").mkdir(parents=True)
    (tmp_path / "good.md").write_text("Short.\n")
    (tmp_path / "bad.md").write_text("Short.\nNobody is.\n")
    (tmp_path / "src" / "room" / "module.py").write_text('def it():\n    """It."""\n    # Nobody is.\n')
    documents, modules = check.read_scopes(tmp_path, RULES)
    assert documents.complaints() == ["bad.md:2: “nobody”; say no client"]
    assert modules.complaints() == [
        "src/room/module.py:1: it's docstring says little: “It.”",
        "src/room/module.py:3: “nobody”; say no client",
    ]
    assert documents.complaints([tmp_path / "bad.md"]) == documents.complaints()
    assert documents.complaints([tmp_path / "good.md"]) == []


def test_the_rules_that_stand_hold_for_documents_and_for_the_package() -> None:
    documents, modules = check.read_scopes(ROOT, check.RULES.read_text())
    assert {ROOT / "README.md", ROOT / "docs" / "serve.md"} <= set(documents.files())
    assert ROOT / "src" / "penstock" / "llm.py" in modules.files()
