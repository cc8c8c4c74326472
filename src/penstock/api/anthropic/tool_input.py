"""The input of a tool's call, which Anthropic's API has as an object, out of the arguments' text."""

import json
from typing import Any


def whole_members(arguments: str) -> dict[str, Any]:
    """The object whose text `arguments` is. Where the text was cut off, the members that had been complete."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return _members_before_cut(arguments)
    return value if isinstance(value, dict) else {}


def _members_before_cut(text: str) -> dict[str, Any]:
    decoder = json.JSONDecoder()
    members: dict[str, Any] = {}
    position = _skip_space(text, 0)
    expected = "{"
    try:
        while text[position] == expected:
            name, position = decoder.raw_decode(text, _skip_space(text, position + 1))
            position = _skip_space(text, position)
            if not isinstance(name, str) or text[position] != ":":
                break
            value, position = decoder.raw_decode(text, _skip_space(text, position + 1))
            position = _skip_space(text, position)
            # Whether a number has come to its end is known by what follows it.
            if text[position] in ",}":
                members[name] = value
            expected = ","
    except (IndexError, ValueError, RecursionError):
        pass
    return members


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position
