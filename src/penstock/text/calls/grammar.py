"""Grammars that hold an output to calls of tools, in the dialect of Lark that llguidance reads.

A call is written as chat templates write calls, the name before the arguments; the arguments follow the tool's schema.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from penstock.core.errors import InvalidParameter
from penstock.core.grammar import MAX_GRAMMAR_BYTES
from penstock.text.calls.formats import PARSERS
from penstock.text.calls.gemma_calls import GEMMA_CLOSER, GEMMA_OPENER
from penstock.text.calls.gemma_value import GEMMA_QUOTE
from penstock.text.calls.parameters import Parameter, ToolSchema, beside_parameters, parameters_of
from penstock.text.calls.parser import (
    HERMES_CLOSER,
    HERMES_OPENER,
    LLAMA_OPENER,
    MISTRAL_ARGUMENTS,
    MISTRAL_OPENER,
)
from penstock.text.calls.python_calls import PYTHON_CLOSER, PYTHON_OPENER
from penstock.text.calls.tagged import GLM, QWEN, Tags
from penstock.text.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START
from penstock.text.schema.enforceable import enforceable, json_rule
from penstock.text.schema.patterns import fits_nothing

Enforced = Literal["required", "strict"]

# In one answer. A model that repeats a call for ever comes to an end.
MAX_CALLS = 64
_OTHER_FORMAT = "in this model's format of calls"
# What is enforced of a value that is text, which is no JSON. Forms of texts are remarks there.
_OF_TEXT = frozenset({"type", "enum", "const", "minLength", "maxLength", "format", "$defs", "definitions"})
# TEXT, PROSE and UNLISTED have no opener of calls in them, even if it is spelled out where it is a special token.
_TERMINALS = {
    "ANYTHING": r"/(?s:.*)/",
    "BREAK": r"/[ \t\r\n]{1,4}/",
    "COMMA": r"/, ?/",
    "PROSE": r"/[ \t\r\n]*[^{ \t\r\n](?s:.*)/ & ~OPENED",
    "UNLISTED": r"/[ \t\r\n]*[^\[ \t\r\n](?s:.*)/ & ~OPENED",
    "SEMICOLON": r"/; ?/",
    "TEXT": r"/(?s:.*)/ & ~OPENED",
}


# Names that stand for themselves, in tags and in Python.
_PLAIN_NAME = re.compile(r"[^\s=(),:'\"\[\]{}<>]+")


class CallsGrammar(msgspec.Struct, frozen=True):
    """A grammar in Lark; `parts` and `unenforced` are as `Grammar` has them."""

    text: str
    parts: tuple[tuple[str, str], ...] = ()
    unenforced: tuple[str, ...] = ()


def calls_grammar(
    calls: str,
    tools: Sequence[ToolSchema],
    enforced: Enforced,
    parallel: bool,
    *,
    special_markers: Mapping[str, int] | None = None,
    by_name: bool = False,
    otherwise: Mapping[str, Any] | None = None,
) -> CallsGrammar:
    """The grammar of outputs that call these tools. Raises InvalidParameter where a strict one cannot be enforced.

    Args:
        calls: the format of calls, a name in `PARSERS`, or "harmony".
        tools: those that may be called, at least one.
        enforced: "required" outputs are calls and nothing else; "strict" ones may be text as well, but every call in
            them follows its tool's schema.
        parallel: whether there may be several calls, `MAX_CALLS` at most.
        special_markers: ids of those marks of the format that are special tokens.
        by_name: of Mistral's two formats the newer one.
        otherwise: the JSON schema of answers that may come in place of required calls; all of it can be enforced.
    """
    rules = _Rules(CHANNEL if calls == "harmony" else PARSERS[calls].opener, special_markers or {}, parallel)
    answer = _ANSWERS[calls, by_name and calls == "mistral"](rules, enforced)
    header = f"{_harmony_header(rules, 'final')} " if calls == "harmony" else ""
    rules.add("start", answer if otherwise is None else f"{answer} | {header}otherwise")
    if otherwise is not None:
        rules.add("otherwise", json_rule(otherwise))
    rules.add("call", " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        parameters, unenforced = enforceable({"type": "object", **tool.parameters})
        for each in unenforced:
            rules.leave_out(tool, each.field, str(each))
        left = replace(tool, parameters=parameters)
        rules.add(f"call_{index}", _CALLS.get(calls, _object_call)(rules, left, index, calls, by_name))
    parts = tuple(
        (f"{kind}_{index}{end}", f"the tool {tool.name!r}")
        for index, tool in enumerate(tools)
        for kind, end in (("arguments", ":"), ("value", "_"))
    )
    return CallsGrammar(rules.text(), parts, tuple(rules.unenforced))


class _Rules:
    """The rules of one grammar."""

    def __init__(self, opener: str, special_markers: Mapping[str, int], parallel: bool) -> None:
        self._opener = opener
        self._special_markers = special_markers
        self._parallel = parallel
        self._lines: list[str] = []
        self.unenforced: list[str] = []

    def leave_out(self, tool: ToolSchema, field: str, what: str) -> None:
        """Tell what is not enforced of a tool's parameters, or refuse it where all has to be."""
        if tool.strict:
            raise InvalidParameter(
                tool.place, f"of the tool {tool.name!r}, {what} cannot be enforced; leave it out, or strict."
            )
        self.unenforced.append(tool.place + field)

    def add(self, name: str, body: str) -> None:
        self._lines.append(f"{name}: {body}")

    def text(self) -> str:
        """All rules, with the terminals that they use."""
        used = {word for line in self._lines if "%json" not in line for word in re.findall(r"[A-Z]{4,}", line)}
        terminals = [f"{name}: {_TERMINALS[name]}" for name in sorted(used & _TERMINALS.keys())]
        if used & {"PROSE", "TEXT", "UNLISTED"}:
            terminals.append(f"OPENED: /(?s:.*){_escaped(self._opener)}(?s:.*)/")
        return "\n".join([*self._lines, *terminals]) + "\n"

    def mark(self, text: str) -> str:
        """A mark, as the special token that it is or as text."""
        index = self._special_markers.get(text)
        return _literal(text) if index is None else f"<[{index}]>"

    def is_special(self, text: str) -> bool:
        """Whether a mark is a special token."""
        return text in self._special_markers

    def up_to(self, text: str) -> str:
        """Anything up to the first mark, and the mark."""
        if text in self._special_markers:
            # Special tokens are no text, so text ends where one comes.
            return f"{'TEXT' if text == self._opener else 'ANYTHING'} {self.mark(text)}"
        name = f"up_to_{len(self._lines)}"
        self.add(f"{name}[lazy]", f"/(?s:.*){_escaped(text)}/")
        return name

    def several(self, call: str, between: str) -> str:
        """One call, or several."""
        return f"{call} ({between} {call}){{0,{MAX_CALLS - 1}}}" if self._parallel else call

    def among_text(self, calls: str) -> str:
        """Text with calls in it, or without."""
        return f"({calls}){f'{{0,{MAX_CALLS}}}' if self._parallel else '?'} TEXT"


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


def _tagged(rules: _Rules, enforced: Enforced) -> str:
    """As in Hermes' format; the end of a call of GLM's belongs to the call."""
    if enforced == "strict":
        return rules.among_text(f"{rules.up_to(HERMES_OPENER)} BREAK? call")
    return rules.several(f"{rules.mark(HERMES_OPENER)} BREAK? call", "BREAK?")


def _pythonic(rules: _Rules, enforced: Enforced) -> str:
    calls = f'"[" {rules.several("call", "COMMA")} "]"'
    if enforced == "required":
        return calls
    return f"UNLISTED? | {calls} | {rules.mark(PYTHON_OPENER)} {calls} {rules.mark(PYTHON_CLOSER)}"


def _gemma(rules: _Rules, enforced: Enforced) -> str:
    rest = f"call {rules.mark(GEMMA_CLOSER)}"
    if enforced == "strict":
        return rules.among_text(f"{rules.up_to(GEMMA_OPENER)} {rest}")
    return rules.several(f"{rules.mark(GEMMA_OPENER)} {rest}", "")


def _harmony_header(rules: _Rules, channel: str) -> str:
    return f"{rules.mark(CHANNEL)} {_literal(channel)} {rules.mark(MESSAGE)}"


def _harmony(rules: _Rules, enforced: Enforced) -> str:
    """One call, since it ends the output; or, where text may come, after a message for the reader, or only that."""
    if enforced == "required":
        return "call"
    said = f'{_harmony_header(rules, "commentary")} ANYTHING {rules.mark(END)} {rules.mark(START)} "assistant"'
    return f"({said})? call | {_harmony_header(rules, 'final')} ANYTHING"


_ANSWERS: dict[tuple[str, bool], Callable[[_Rules, Enforced], str]] = {
    ("hermes", False): _hermes,
    ("llama3", False): _llama,
    ("mistral", False): _mistral_array,
    ("mistral", True): _mistral_by_name,
    ("qwen3_coder", False): _hermes,
    ("glm45", False): _tagged,
    ("pythonic", False): _pythonic,
    ("gemma4", False): _gemma,
    ("harmony", False): _harmony,
}


def _object_call(rules: _Rules, tool: ToolSchema, index: int, calls: str, by_name: bool) -> str:
    """A call whose arguments are one JSON object."""
    rules.add(f"arguments_{index}", json_rule(tool.parameters))
    if calls == "mistral" and by_name:
        return f"{_literal(tool.name)} {rules.mark(MISTRAL_ARGUMENTS)} arguments_{index}"
    key = "parameters" if calls == "llama3" else "arguments"
    beginning = f'{{"name": {json.dumps(tool.name)}, "{key}": '
    return f"{_literal(beginning)} arguments_{index} {_literal('}')}"


def _harmony_call(rules: _Rules, tool: ToolSchema, index: int, calls: str, by_name: bool) -> str:
    """A message to the tool; the end of the output ends it."""
    rules.add(f"arguments_{index}", json_rule(tool.parameters))
    header = f"{rules.mark(CHANNEL)} {_literal(f'commentary to=functions.{tool.name} ')}"
    return f'{header} {rules.mark(CONSTRAIN)} "json" {rules.mark(MESSAGE)} arguments_{index}'


def _tagged_call(rules: _Rules, tool: ToolSchema, index: int, calls: str, by_name: bool) -> str:
    """A call between tags: parameters in the order of the schema, and no others."""
    tags = QWEN if calls == "qwen3_coder" else GLM
    parts = [_literal(f"{tags.name_begin}{tool.name}{tags.name_end}"), "BREAK?"]
    for parameter in _written_parameters(rules, tool, tags.key_end):
        place = f"{index}_{len(parts)}"
        begin = f"{rules.mark(tags.key_begin)} {_literal(parameter.name)} {rules.mark(tags.key_end)}"
        if tags.value_begin:
            begin += f" BREAK? {rules.mark(tags.value_begin)}"
        rules.add(f"argument_{place}", f"{begin} {_tagged_value(rules, tool, parameter, tags, place)} BREAK?")
        parts.append(f"argument_{place}" + ("" if parameter.required else "?"))
    return " ".join([*parts, rules.mark(tags.call_end)])


def _tagged_value(rules: _Rules, tool: ToolSchema, parameter: Parameter, tags: Tags, place: str) -> str:
    """A value, and the tag that ends it."""
    pad = "\n" if tags.padded else ""
    before = _literal(pad) + " " if pad else ""
    if parameter.text is None:
        rules.add(f"value_{place}", json_rule(parameter.schema))
        return f"{before}value_{place} {before}{rules.mark(tags.value_end)}"
    return before + _text_value(rules, tool, parameter, tags.value_end, place, pad)


def _text_value(rules: _Rules, tool: ToolSchema, parameter: Parameter, mark: str, place: str, pad: str = "") -> str:
    """A value that is text, `pad`, and the mark that ends it."""
    schema = parameter.text
    assert schema is not None, "the parameter is text"
    for key in sorted(schema.keys() - _OF_TEXT):
        what = f"the keyword {key!r} of the property {parameter.name!r} ({_OTHER_FORMAT})"
        rules.leave_out(tool, f".properties.{parameter.name}.{key}", what)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        texts = [value for value in values if isinstance(value, str) and mark not in value]
        if not texts:
            raise _cannot_be_written(tool, f"the values of {parameter.name!r}")
        return f"({' | '.join(_literal(text + pad) for text in texts)}) {rules.mark(mark)}"
    end, name = _escaped(mark), f"VALUE_{place}"
    text = f"(?s:.{_times(schema)}){_escaped(pad)}"
    if rules.is_special(mark):
        rules.add(name, rf"/{text}/ & ~/(?s:.*){end}(?s:.*)/")
        return f"{name} {rules.mark(mark)}"
    # The mark belongs to the terminal, which cannot go on behind it: so the first is the end.
    rules.add(name, rf"/{text}{end}/ & ~/(?s:.*){end}(?s:.+)/")
    return name


def _times(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"{{{least},{most}}}" if least or most != "" else "*"


def _python_call(rules: _Rules, tool: ToolSchema, index: int, calls: str, by_name: bool) -> str:
    """A call in Python's notation: parameters in the order of the schema, and no others."""

    def value(parameter: Parameter, place: str) -> str:
        rules.add(f"value_{place}", '"True" | "False"' if parameter.is_boolean else json_rule(parameter.schema))
        return f"value_{place}"

    arguments = _listed(rules, tool, index, "=", "COMMA", value)
    return f"{_literal(tool.name + '(')} {arguments} {_literal(')')}"


def _gemma_call(rules: _Rules, tool: ToolSchema, index: int, calls: str, by_name: bool) -> str:
    """A call in Gemma's notation: texts between its own quotes, all else as JSON, which has no spaces between keys."""

    def value(parameter: Parameter, place: str) -> str:
        if parameter.text is None:
            rules.add(f"value_{place}", json_rule(parameter.schema))
            return f"value_{place}"
        text = f"{rules.mark(GEMMA_QUOTE)} {_text_value(rules, tool, parameter, GEMMA_QUOTE, place)}"
        return f'({text} | "null")' if parameter.nullable else text

    arguments = _listed(rules, tool, index, ":", '","', value)
    return f"{_literal(f'call:{tool.name}{{')} {arguments} {_literal('}')}"


def _listed(
    rules: _Rules,
    tool: ToolSchema,
    index: int,
    name_end: str,
    comma: str,
    value: Callable[[Parameter, str], str],
) -> str:
    """Parameters in the order of the schema, with commas between, and no others; `value` is that of one at a place."""
    # Both of what may come from a parameter on: as the call's first, and behind others.
    first, behind = "", ""
    for place, parameter in reversed(list(enumerate(_written_parameters(rules, tool, name_end)))):
        argument, name = f"argument_{index}_{place}", f"{index}_{place}"
        rules.add(argument, f"{_literal(parameter.name + name_end)} {value(parameter, name)}")
        begun = f"{argument} {behind}"
        optional = f"{begun} | {first}" if first else f"({begun})?"
        rules.add(f"first_{name}", begun if parameter.required else optional)
        follows = f"{comma} {argument}"
        rules.add(f"behind_{name}", f"{follows if parameter.required else f'({follows})?'} {behind}")
        first, behind = f"first_{name}", f"behind_{name}"
    return first


def _written_parameters(rules: _Rules, tool: ToolSchema, name_end: str) -> list[Parameter]:
    """The parameters that a call may have: those whose names can be written. Raises InvalidParameter."""
    for field, what in beside_parameters(tool):
        rules.leave_out(tool, field, f"{what} ({_OTHER_FORMAT})")
    found, size = [], 0
    for parameter in parameters_of(tool):
        size += len(json.dumps(parameter.schema))
        if size > MAX_GRAMMAR_BYTES:
            what = f"the schemas of all parameters, with what they refer to, are more than {MAX_GRAMMAR_BYTES} bytes"
            raise InvalidParameter(tool.place, f"of the tool {tool.name!r}, {what}.")
        if not parameter.required and fits_nothing(parameter.schema):
            # It is never there.
            continue
        if _PLAIN_NAME.fullmatch(parameter.name) and name_end not in parameter.name:
            found.append(parameter)
        elif parameter.required:
            raise _cannot_be_written(tool, f"the name of the parameter {parameter.name[:40]!r}")
    return found


def _cannot_be_written(tool: ToolSchema, what: str) -> InvalidParameter:
    return InvalidParameter(tool.place, f"of the tool {tool.name!r}, {what} cannot be written {_OTHER_FORMAT}.")


_CALLS: dict[str, Callable[[_Rules, ToolSchema, int, str, bool], str]] = {
    "qwen3_coder": _tagged_call,
    "glm45": _tagged_call,
    "pythonic": _python_call,
    "gemma4": _gemma_call,
    "harmony": _harmony_call,
}


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(mark: str) -> str:
    """A mark in a regular expression."""
    return re.sub(r"([][|/])", r"\\\1", mark).replace("\n", r"\n")
