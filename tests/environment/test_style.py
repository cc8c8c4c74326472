"""The check of documents and docstrings finds what its rules name, and where."""

from pathlib import Path

import pytest

from support.scripts import ROOT, load_script

check = load_script("check_style")
DOCUMENTS = check.Documents(most_words=5, most_characters=40, phrases={"so many": "the number", "whoever": "who"})
RULES = """
[documents]
paths = ["*.md"]
most_words = 5
most_characters = 80
phrases = {nobody = "no client"}
[docstrings]
paths = ["src/**/*.py"]
fewest_words = 5
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


def test_all_files_are_checked_or_those_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "src" / "room").mkdir(parents=True)
    (tmp_path / "good.md").write_text("Short.\n")
    (tmp_path / "bad.md").write_text("Short.\nNobody is.\n")
    (tmp_path / "src" / "room" / "module.py").write_text('def it():\n    """It."""\n')
    documents, docstrings = check.read_scopes(tmp_path, RULES)
    assert documents.complaints() == ["bad.md:2: “nobody”; say no client"]
    assert docstrings.complaints() == ["src/room/module.py:1: it's docstring says little: “It.”"]
    assert documents.complaints([tmp_path / "bad.md"]) == documents.complaints()
    assert documents.complaints([tmp_path / "good.md"]) == []


def test_the_rules_that_stand_hold_for_documents_and_for_the_package() -> None:
    documents, docstrings = check.read_scopes(ROOT, check.RULES.read_text())
    assert {ROOT / "README.md", ROOT / "docs" / "serve.md"} <= set(documents.files())
    assert ROOT / "src" / "penstock" / "llm.py" in docstrings.files()
