"""Whether documents, docstrings and comments are written in plain words, by the rules in `style.toml` beside this file.

Without arguments, everything that the rules hold for is checked, else the files that are named. Each fault is one line,
`FILE:LINE: what is wrong`, and then the exit status is 1.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
RULES = Path(__file__).with_name("style.toml")
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=[A-Z0-9`\"'(\[])")
_WORD = re.compile(r"\S*\w\S*")
_INLINE_CODE = re.compile(r"`[^`]*`")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fault:
    """What is wrong in a line of a text, which is counted from 1."""

    line: int
    message: str


@dataclass(frozen=True)
class Phrases:
    """What is not said in prose, each with what is said instead."""

    instead: dict[str, str]

    def faults(self, line: int, prose: str) -> Iterator[Fault]:
        """The phrases that stand in prose that begins in this line."""
        for phrase, instead in self.instead.items():
            pattern = rf"\b{re.escape(phrase)}\b".replace(r"\ ", r"\s+")
            for match in re.finditer(pattern, prose, re.IGNORECASE):
                yield Fault(line + prose.count("\n", 0, match.start()), f"“{phrase}”; say {instead}")


@dataclass(frozen=True)
class Documents:
    """What documents are held to: the most words of a sentence and characters of a line, and what is said instead."""

    phrases: Phrases
    most_words: int
    most_characters: int

    def faults(self, text: str) -> list[Fault]:
        """What is wrong in a document in Markdown, in the order of its lines."""
        tokens = _MARKDOWN.parse(text)
        faults = list(self._long_lines(text, tokens))
        for line, prose in _blocks(tokens):
            faults += self.phrases.faults(line, prose)
            faults += self._long_sentences(line, prose)
        return sorted(faults, key=lambda fault: fault.line)

    def _long_lines(self, text: str, tokens: Sequence[Token]) -> Iterator[Fault]:
        exempt = {
            line
            for token in tokens
            if token.map and token.type in ("table_open", "fence", "code_block", "html_block")
            for line in range(*token.map)
        }
        for index, line in enumerate(text.splitlines()):
            if index not in exempt and len(line) > self.most_characters:
                yield Fault(index + 1, f"{len(line)} characters; at most {self.most_characters} outside tables")

    def _long_sentences(self, line: int, prose: str) -> Iterator[Fault]:
        begin = 0
        for end in [*(match.end() for match in _SENTENCE_END.finditer(prose)), len(prose)]:
            words = _WORD.findall(prose[begin:end])
            if len(words) > self.most_words:
                yield Fault(
                    line + prose.count("\n", 0, begin),
                    f"a sentence of {len(words)} words (“{' '.join(words[:4])} …”); at most {self.most_words}",
                )
            begin = end


@dataclass(frozen=True)
class Modules:
    """What modules are held to: what docstrings and comments say instead, and the fewest words of public docstrings."""

    phrases: Phrases
    fewest_words: int

    def faults(self, source: str) -> list[Fault]:
        """What is wrong in a module, in the order of its lines."""
        tree = ast.parse(source)
        faults = list(self._short_docstrings(tree))
        for line, prose in (*_docstrings(tree), *_comments(source)):
            faults += self.phrases.faults(line, _INLINE_CODE.sub(_blank, prose))
        return sorted(faults, key=lambda fault: fault.line)

    def _short_docstrings(self, tree: ast.Module) -> Iterator[Fault]:
        for definition in _public(tree):
            said = ast.get_docstring(definition)
            if said is not None and "`" not in said and len(said.split()) < self.fewest_words:
                yield Fault(definition.lineno, f"{definition.name}'s docstring says little: “{said}”")


def _blocks(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """The prose of each paragraph, heading and table cell, without its markup, and the line where it begins."""
    line = 1
    for token in tokens:
        if token.map:
            line = token.map[0] + 1
        if token.type == "inline":
            yield line, "".join(_plain(child) for child in token.children or ())


def _plain(token: Token) -> str:
    if token.type == "text":
        return token.content
    if token.type == "code_inline":
        return "`code`"
    return "\n" if token.type in ("softbreak", "hardbreak") else ""


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts that stand alone as statements, and the lines where they begin."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments without their marks, those in lines one below the other as one, and the lines where they begin."""
    begin, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if lines and token.start[0] != begin + len(lines):
            yield begin, "\n".join(lines)
            lines = []
        if not lines:
            begin = token.start[0]
        lines.append(token.string.removeprefix("#"))
    if lines:
        yield begin, "\n".join(lines)


def _blank(code: re.Match[str]) -> str:
    """What stands for inline code, on the same number of lines."""
    return "`code`" + "\n" * code[0].count("\n")


def _public(node: ast.AST) -> Iterator[Definition]:
    """Public classes, functions and methods; what is defined inside of a function is not public."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            if not child.name.startswith("_"):
                yield child
                if isinstance(child, ast.ClassDef):
                    yield from _public(child)
        else:
            yield from _public(child)


@dataclass(frozen=True)
class Scope:
    """The files under `root` that a rule holds for."""

    root: Path
    rule: Documents | Modules
    paths: Sequence[str]

    def files(self) -> list[Path]:
        """All that the rule holds for, in the order of their names."""
        return sorted({path for pattern in self.paths for path in self.root.glob(pattern)})

    def complaints(self, named: Sequence[Path] = ()) -> list[str]:
        """A line for each fault in the files, or in those of them that are named."""
        return [
            f"{path.relative_to(self.root)}:{fault.line}: {fault.message}"
            for path in self.files()
            if not named or path in named
            for fault in self.rule.faults(path.read_text(encoding="utf-8"))
        ]


def read_scopes(root: Path, rules: str) -> list[Scope]:
    """The rules in the text of a TOML file, for the files under `root`."""
    settings = tomllib.loads(rules)
    phrases = Phrases(settings["phrases"])
    scopes = []
    for name, kind in (("documents", Documents), ("modules", Modules)):
        limits = settings[name]
        paths = limits.pop("paths")
        scopes.append(Scope(root, kind(phrases, **limits), paths))
    return scopes


def main() -> None:
    """Check what the command line names, or everything."""
    parser = argparse.ArgumentParser(description="Check that documents, docstrings and comments are plain.")
    parser.add_argument("file", nargs="*", type=Path, help="check these only")
    named = [path.resolve() for path in parser.parse_args().file]
    scopes = read_scopes(ROOT, RULES.read_text(encoding="utf-8"))
    unknown = [path for path in named if not any(path in scope.files() for scope in scopes)]
    if unknown:
        raise SystemExit(f"No rule holds for {unknown[0]}; {RULES.name} says which files are checked.")
    complaints = [complaint for scope in scopes for complaint in scope.complaints(named)]
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
