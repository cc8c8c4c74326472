"""What an output must look like, as a request asks for it: a JSON schema, a regular expression or a grammar."""

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import msgspec

from penstock.core.errors import InvalidParameter

MAX_GRAMMAR_BYTES = 256 * 1024
# Nesting of lists and objects in a schema, of brackets in an expression or grammar: what compiles them is recursive.
MAX_GRAMMAR_DEPTH = 64
MAX_CHOICES = 1024

GrammarKind = Literal["json_schema", "regex", "lark", "gbnf"]
_CONTAINERS = (dict, list)
_SPECIAL = frozenset("\\.+*?()|[]{}^$#&-~")
_BRACKETS = re.compile(r"\\.|([(\[{])|([)\]}])", re.DOTALL)


class Grammar(msgspec.Struct, frozen=True):
    """The language of all outputs that are accepted. Construction raises `InvalidParameter`, naming `param`.

    Attributes:
        kind: how `text` is to be read: a JSON schema (draft 2020-12), a regular expression that matches the whole
            output (in the syntax of Rust's crate regex), a grammar in llguidance's dialect of Lark or in llama.cpp's
            GBNF.
        text: the schema, expression or grammar.
        param: the field of the request that asked for it, for messages.
        thought: what may, or must, come before it: rules in Lark, which define the rule `thought`, and as the terminal
            `OPENING` what no text behind it begins with. Empty where nothing comes before.
        json_inside: whether the outputs of a grammar that is no JSON schema have values in them that fit one.
        parts: for messages, what the rules of a grammar are about whose names begin so.
        unenforced: fields of the request that say what the output is not held to, for the client to know.
    """

    kind: GrammarKind
    text: str
    param: str = "grammar"
    thought: str = ""
    json_inside: bool = False
    parts: tuple[tuple[str, str], ...] = ()
    unenforced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidParameter(self.param, "must be a string that is not empty.")
        try:
            size = len(self.text.encode("utf-8"))
        except UnicodeEncodeError:
            raise InvalidParameter(self.param, "has half of a surrogate pair, which is not a character.") from None
        if size > MAX_GRAMMAR_BYTES:
            raise InvalidParameter(self.param, f"its {size} bytes are more than the {MAX_GRAMMAR_BYTES} accepted.")
        if self.kind != "json_schema":
            self._check_depth(_bracket_depth(self.text))

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_GRAMMAR_DEPTH:
            raise InvalidParameter(self.param, f"is nested more than {MAX_GRAMMAR_DEPTH} deep.")

    @property
    def has_unique_keys(self) -> bool:
        """Whether objects in its outputs have no key twice, and none that is escaped needlessly."""
        return self.kind == "json_schema" or self.json_inside

    @classmethod
    def json_schema(cls, schema: Any, param: str = "grammar") -> "Grammar":
        """JSON values that a schema accepts; it is an object, or true for any JSON, as JSON or as Python has it."""
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError):
                raise InvalidParameter(param, "is not valid JSON.") from None
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise InvalidParameter(param, "a JSON schema must be an object, or true for any JSON.")
        if "x-guidance" in schema:
            raise InvalidParameter(f"{param}.x-guidance", "is not supported; leave it out.")
        depth = _depth(schema)
        if depth > MAX_GRAMMAR_DEPTH:
            raise InvalidParameter(param, f"is nested more than {MAX_GRAMMAR_DEPTH} deep.")
        try:
            return cls("json_schema", json.dumps(schema, ensure_ascii=False, allow_nan=False), param)
        except (TypeError, ValueError) as error:
            raise InvalidParameter(param, f"cannot be written as JSON: {error}.") from None

    @classmethod
    def json_object(cls, param: str = "grammar") -> "Grammar":
        """Holds an output to any JSON object."""
        return cls("json_schema", '{"type": "object"}', param)

    @classmethod
    def regex(cls, expression: str, param: str = "grammar") -> "Grammar":
        """Texts that match an expression from beginning to end."""
        return cls("regex", expression, param)

    @classmethod
    def choice(cls, texts: Sequence[str], param: str = "grammar") -> "Grammar":
        """Holds an output to one of `texts`. Raises InvalidParameter where they are not texts."""
        if (
            not isinstance(texts, list | tuple)
            or not texts
            or not all(isinstance(text, str) and text for text in texts)
        ):
            raise InvalidParameter(param, "must be a list of strings, none of them empty.")
        if len(texts) > MAX_CHOICES:
            raise InvalidParameter(param, f"{len(texts)} choices given, at most {MAX_CHOICES} are accepted.")
        return cls("regex", "|".join(map(_literally, dict.fromkeys(texts))), param)

    @classmethod
    def ebnf(cls, text: str, param: str = "grammar") -> "Grammar":
        """A grammar in Lark's notation (`start: "a" | "b"`) or, told by its `::=`, in GBNF (`root ::= "a" | "b"`)."""
        return cls("gbnf" if isinstance(text, str) and "::=" in text else "lark", text, param)


def _literally(text: str) -> str:
    """An expression that only `text` matches."""
    return "".join("\\" + char if char in _SPECIAL else char for char in text)


def _bracket_depth(text: str) -> int:
    """How deep brackets are nested at most, escaped ones left out."""
    depth = most = 0
    for found in _BRACKETS.finditer(text):
        if found[1]:
            depth += 1
            most = max(most, depth)
        elif found[2] and depth:
            depth -= 1
    return most


def _depth(value: dict[str, Any]) -> int:
    """How deep lists and objects are nested, what they hold included; looks no deeper than what is accepted."""
    level: list[Any] = [value]
    depth = 0
    while level and depth <= MAX_GRAMMAR_DEPTH:
        # One by one in C: an enum can have a hundred thousand values.
        inner = list(chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level))
        level = [each for each in inner if isinstance(each, _CONTAINERS)]
        depth += 1 if level or not inner else 2
    return depth
