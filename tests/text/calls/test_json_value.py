"""Where a JSON value ends, against Python's own parser, and the same however it is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text.calls.json_value import JsonValue, is_json_object
from support.pieces import cut

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
LOOKS_LIKE_JSON = st.lists(
    st.sampled_from([*'{}[]:,"\\ \n-+.0179eEtfnux', "true", "null", '"a"', "1.5e3", "\\u00e9", "é"]), max_size=12
).map("".join)


def read(parts: list[str]) -> tuple[int, bool, bool]:
    """How many characters are the value's, whether it ended, whether it broke."""
    value, taken = JsonValue(), 0
    for part in parts:
        here = value.feed(part)
        taken += here
        if here < len(part):
            break
    return taken, value.ended, value.broken


@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans(), places=st.lists(st.integers(0, 99)))
def test_a_value_ends_where_its_text_does(value: Any, indent: int | None, ascii_only: bool, places: list[int]) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert read(cut(text + "}", places)) == (len(text), True, False)


@given(text=LOOKS_LIKE_JSON, places=st.lists(st.integers(0, 40), max_size=4))
def test_what_is_accepted_is_what_python_accepts(text: str, places: list[int]) -> None:
    whole = read([text + "}"])
    assert read(cut(text + "}", places)) == whole
    taken, ended, broken = whole
    assert ended != broken or taken == len(text) + 1
    if ended:
        json.loads(text[:taken] if taken <= len(text) else text + "}")
    try:
        json.loads(text)
    except ValueError:
        return
    assert ended and text[taken:].strip(" \t\r\n") in ("", "}")


@pytest.mark.parametrize(
    "text",
    ["[01]", "-", "1.", ".5", "1e", "+1", "tru", "nul!", '"\n"', '"\\x"', '"\\u12g4"', "[1,]", "{,}", '{"a" 1}', "NaN"],
)
def test_what_is_no_json_breaks(text: str) -> None:
    assert read([text + "]"])[2]


def test_depth_is_no_concern() -> None:
    depth = 100_000
    assert read(["[" * depth + "]" * depth]) == (2 * depth, True, False)


def test_objects_alone() -> None:
    assert is_json_object('{"a": 1}') and is_json_object("{}")
    for text in ("", "{", "[]", '{"a": 1} ', "null", "{}{}"):
        assert not is_json_object(text)
