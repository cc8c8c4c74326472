"""A call's arguments as an object, also where its text was cut off."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.anthropic.tool_input import whole_members

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(members=st.dictionaries(st.text(), VALUES, max_size=4), place=st.floats(0, 1), indent=st.sampled_from([None, 1]))
def test_members_that_were_complete_are_kept(members: dict[str, Any], place: float, indent: int | None) -> None:
    text = json.dumps(members, indent=indent)
    assert whole_members(text) == members
    found = whole_members(text[: int(place * len(text))])
    # The members are the first ones, with their whole values.
    assert list(found.items()) == list(members.items())[: len(found)]


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", {}),
        ("[1, 2", {}),
        ("7", {}),
        ('{"a": 1', {}),
        ('{"a": 1,', {"a": 1}),
        ('{"a": {"b": 2}, "c": [1, ', {"a": {"b": 2}}),
        ('{"a": "x", b', {"a": "x"}),
        ("[" * 100_000, {}),
        ('{"a": ' + "[" * 100_000, {}),
    ],
)
def test_examples(text: str, members: dict[str, Any]) -> None:
    assert whole_members(text) == members
