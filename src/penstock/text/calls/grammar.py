"""Grammars that hold an output to calls of tools, in the dialect of Lark that llguidance reads.

A call is written as chat templates write calls, the name before the arguments; the arguments follow the tool's schema.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from penstock.text.calls.parser import (
    HERMES_CLOSER,
    HERMES_OPENER,
    LLAMA_OPENER,
    MISTRAL_ARGUMENTS,
    MISTRAL_OPENER,
    PARSERS,
)
from penstock.text.reasoning import THINK_CLOSER, THINK_OPENER

Enforced = Literal["required", "strict"]
Before = Literal["nothing", "reasoning", "open reasoning"]

# White space inside of arguments is bounded, so that a model cannot fill its output with it.
_WHITE_SPACE = r"( |\n[ \t]{0,32})?"
# TEXT and PROSE have no opener of calls in them, even if it is spelled out where it is a special token.
_TERMINALS = {
    "ANYTHING": r"/(?s:.*)/",
    "BREAK": r"/[ \t\r\n]{1,4}/",
    "COMMA": r"/, ?/",
    "PROSE": r"/[ \t\r\n]*[^{ \t\r\n](?s:.*)/ & ~OPENED",
    "SEMICOLON": r"/; ?/",
    "TEXT": r"/(?s:.*)/ & ~OPENED",
}


# What a schema says to people, and where its keys are names and no keywords.
_REMARKS = frozenset({"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_VALUES = frozenset({"const", "enum"})


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool whose calls are enforced; unless it is `strict`, keywords that cannot be enforced are passed over."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def calls_grammar(
    calls: str,
    tools: Sequence[ToolSchema],
    enforced: Enforced,
    parallel: bool,
    *,
    special_markers: Mapping[str, int] | None = None,
    by_name: bool = False,
    before: Before = "nothing",
    otherwise: Mapping[str, Any] | None = None,
) -> str:
    """The grammar of outputs that call these tools.

    Args:
        calls: the format of calls: hermes, llama3 or mistral.
        tools: those that may be called, at least one.
        enforced: "required" outputs are calls and nothing else; "strict" ones may be text as well, but every call in
            them follows its tool's schema.
        parallel: whether there may be several calls.
        special_markers: ids of those marks of the format that are special tokens.
        by_name: of Mistral's two formats the newer one.
        before: whether a block of reasoning may come first, or is open and must end.
        otherwise: the JSON schema of answers that may come in place of required calls.
    """
    rules = _Rules(PARSERS[calls].opener, special_markers or {}, parallel)
    thought = rules.thought(before)
    rules.add("start", f"{thought}answer")
    answer = _ANSWERS[calls, by_name and calls == "mistral"](rules, enforced)
    rules.add("answer", answer if otherwise is None else f"{answer} | otherwise")
    if otherwise is not None:
        rules.add("otherwise", _json(otherwise, strict=True))
    rules.add("call", " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        if calls == "mistral" and by_name:
            call = f"{_literal(tool.name)} {rules.mark(MISTRAL_ARGUMENTS)} arguments_{index}"
        else:
            key = "parameters" if calls == "llama3" else "arguments"
            beginning = f'{{"name": {json.dumps(tool.name)}, "{key}": '
            call = f"{_literal(beginning)} arguments_{index} {_literal('}')}"
        rules.add(f"call_{index}", call)
        rules.add(f"arguments_{index}", _json({"type": "object", **tool.parameters}, strict=tool.strict))
    return rules.text()


class _Rules:
    """The rules of one grammar."""

    def __init__(self, opener: str, special_markers: Mapping[str, int], parallel: bool) -> None:
        self._opener = opener
        self._special_markers = special_markers
        self._parallel = parallel
        self._lines: list[str] = []

    def add(self, name: str, body: str) -> None:
        self._lines.append(f"{name}: {body}")

    def text(self) -> str:
        """All rules, with the terminals that they use."""
        used = {word for line in self._lines if "%json" not in line for word in re.findall(r"[A-Z]{4,}", line)}
        terminals = [f"{name}: {_TERMINALS[name]}" for name in sorted(used & _TERMINALS.keys())]
        if used & {"PROSE", "TEXT"}:
            terminals.append(f"OPENED: /(?s:.*){_escaped(self._opener)}(?s:.*)/")
        return "\n".join([*self._lines, *terminals]) + "\n"

    def mark(self, text: str) -> str:
        """A mark, as the special token that it is or as text."""
        index = self._special_markers.get(text)
        return _literal(text) if index is None else f"<[{index}]>"

    def up_to(self, text: str) -> str:
        """Anything up to the first mark, and the mark."""
        if text in self._special_markers:
            # Special tokens are no text, so text ends where one comes.
            return f"{'TEXT' if text == self._opener else 'ANYTHING'} {self.mark(text)}"
        name = f"up_to_{len(self._lines)}"
        self.add(f"{name}[lazy]", f"/(?s:.*){_escaped(text)}/")
        return name

    def several(self, call: str, between: str) -> str:
        """One call, or as many as the model likes."""
        return f"{call} ({between} {call})*" if self._parallel else call

    def among_text(self, calls: str) -> str:
        """Text with calls in it, or without."""
        return f"({calls}){'*' if self._parallel else '?'} TEXT"

    def thought(self, before: Before) -> str:
        """What comes before the answer."""
        if before == "nothing":
            return ""
        rest = f"{self.up_to(THINK_CLOSER)} BREAK? "
        return rest if before == "open reasoning" else f"({self.mark(THINK_OPENER)} {rest})? "


def _hermes(rules: _Rules, enforced: Enforced) -> str:
    rest = f"BREAK? call BREAK? {rules.mark(HERMES_CLOSER)}"
    if enforced == "strict":
        return rules.among_text(f"{rules.up_to(HERMES_OPENER)} {rest}")
    return rules.several(f"{rules.mark(HERMES_OPENER)} {rest}", "BREAK?")


def _llama(rules: _Rules, enforced: Enforced) -> str:
    calls = rules.several("call", "SEMICOLON")
    return calls if enforced == "required" else f"PROSE? | {rules.mark(LLAMA_OPENER)}? {calls}"


def _mistral_array(rules: _Rules, enforced: Enforced) -> str:
    rest = f'BREAK? "[" {rules.several("call", "COMMA")} "]"'
    if enforced == "strict":
        return rules.among_text(f"{rules.up_to(MISTRAL_OPENER)} {rest}")
    return f"{rules.mark(MISTRAL_OPENER)} {rest}"


def _mistral_by_name(rules: _Rules, enforced: Enforced) -> str:
    if enforced == "strict":
        return rules.among_text(f"{rules.up_to(MISTRAL_OPENER)} call")
    return rules.several(f"{rules.mark(MISTRAL_OPENER)} call", "")


_ANSWERS: dict[tuple[str, bool], Callable[[_Rules, Enforced], str]] = {
    ("hermes", False): _hermes,
    ("llama3", False): _llama,
    ("mistral", False): _mistral_array,
    ("mistral", True): _mistral_by_name,
}


def _literal(text: str) -> str:
    return json.dumps(text)


def _escaped(mark: str) -> str:
    """A mark in a regular expression."""
    return re.sub(r"([][|/])", r"\\\1", mark)


def _json(schema: Mapping[str, Any], *, strict: bool) -> str:
    options = {"whitespace_pattern": _WHITE_SPACE, "lenient": not strict, "coerce_one_of": not strict}
    return f"%json {json.dumps({**_without_remarks(schema), 'x-guidance': options}, ensure_ascii=False)}"


def _without_remarks(schema: Any) -> Any:
    """The same schema in less text: remarks are not enforced, but count where a grammar's size is bounded."""
    if isinstance(schema, list):
        return [_without_remarks(inner) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, inner in schema.items():
        if key in _NAMED and isinstance(inner, Mapping):
            result[key] = {name: _without_remarks(each) for name, each in inner.items()}
        elif key not in _REMARKS:
            result[key] = inner if key in _VALUES else _without_remarks(inner)
    return result
