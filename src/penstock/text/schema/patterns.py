"""Regular expressions of schemas: whether they can be enforced, and which names they leave room for."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# Compiling a longer one may take long; it is judged when the whole schema is compiled, beside the requests.
_MOST_CHARACTERS = 2000
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_WORD = re.compile(r"[\w .:/@-]*(?:\\[./-][\w .:/@-]*)*")
_UNBOUNDED = re.compile(r"(?:[*+]|\{\d+,\})[?]?$")
# What llguidance quotes of the expression, and where it is at fault.
_QUOTED = re.compile(r"\n(?:.*\n)*?error: ")
_PLACES = re.compile(r"^at 1\(8\): |failed to compile JSON schema: |regex parse error:")


def problem(schema: Mapping[str, Any]) -> str | None:
    """What llguidance says where it cannot hold an output to a schema; None where it can."""
    return _problem(json.dumps(schema))


def fits_nothing(schema: Mapping[str, Any]) -> bool:
    """Whether a schema that can be enforced leaves no value."""
    return "nsatisfiable" in (problem(schema) or "")


@lru_cache(maxsize=1024)
def _problem(schema: str) -> str | None:
    from llguidance import LLMatcher

    return LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema)) or None


def pattern_problem(pattern: str) -> str | None:
    """Why no output can be held to an expression; None where it can."""
    if len(pattern) > _MOST_CHARACTERS:
        return None
    found = problem({"type": "string", "pattern": pattern})
    return None if found is None else _PLACES.sub("", _QUOTED.sub("", found)).strip().rstrip(".")


def matches(pattern: str, name: str) -> bool:
    """Whether an expression that can be enforced matches a name."""
    return problem({"allOf": [{"const": name}, {"type": "string", "pattern": pattern}]}) is None


def names_of(pattern: str) -> list[str] | None:
    """The names that an expression matches where it lists them, as `^(a|b)$` does; None where it does not."""
    if not (pattern.startswith("^") and pattern.endswith("$")):
        return None
    inner = pattern[1:-1]
    grouped = re.fullmatch(r"\((?:\?:)?([^()]*)\)", inner)
    words = grouped[1].split("|") if grouped else [inner]
    if not all(_WORD.fullmatch(word) and "." not in word.replace("\\.", "") for word in words):
        return None
    return [word.replace("\\", "") for word in words]


def is_open(pattern: str) -> bool:
    """Whether whatever may be a match's beginning can surely be continued in ever new ways.

    Names that are to be unique need that: of `^[0-9]{2}$` there are a hundred, and behind `1` there may be none left.
    """
    if len(pattern) > _MOST_CHARACTERS:
        return False
    parts = _PARTS.findall(pattern)
    if "^" not in parts:
        # What is found anywhere can come later, too.
        return True
    if "|" in _outermost(parts) or "$" in parts[:-1]:
        return False
    if parts[-1] != "$":
        return True
    return _ends_unbounded(parts[:-1])


def _ends_unbounded(parts: list[str]) -> bool:
    if _UNBOUNDED.search("".join(parts[-12:])) and parts[-1][0] != "\\":
        return True
    if not parts or parts[-1] != ")":
        return False
    # The end of the group, where it has but one.
    start, depth = len(parts) - 1, 0
    while start >= 0:
        depth += (parts[start] == ")") - (parts[start] == "(")
        if depth == 0:
            break
        start -= 1
    group = parts[start + 1 : -1]
    return bool(group) and "|" not in _outermost(group) and _ends_unbounded(group)


def _outermost(parts: list[str]) -> list[str]:
    """Those parts that stand in no group."""
    found, depth = [], 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if depth == 0:
            found.append(part)
    return found
