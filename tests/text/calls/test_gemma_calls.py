"""Calls in Gemma 4's notation: what they come to, and the same however the output is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text.calls.gemma_calls import GemmaParser
from support.pieces import cut, each_cut, parsed

# What is written, and the JSON that it comes to; None where it is no value.
VALUES: list[tuple[str, str | None]] = [
    ('<|"|>Zürich<|"|>', '"Zürich"'),
    ('<|"|><|"|>', '""'),
    ('<|"|>a "b" {c}, [d]: \\ <|x<|"|>', '"a \\"b\\" {c}, [d]: \\\\ <|x"'),
    ('<|"|>one\ntwo<|"|>', '"one\\ntwo"'),
    ('"Zürich, \\"x\\""', '"Zürich, \\"x\\""'),
    ("5", "5"),
    ("-2.5e1", "-2.5e1"),
    ("true", "true"),
    ("None", "null"),
    ("null", "null"),
    ("01", '"01"'),
    ("soon", '"soon"'),
    ("in two days", '"in two days"'),
    ("long " * 20 + "text", f'"{"long " * 20}text"'),
    ("{" + "k" * 70 + ":1}", f'{{"{"k" * 70}": 1}}'),
    ("[]", "[]"),
    ("{}", "{}"),
    ('[1, <|"|>a<|"|>,[null]]', '[1, "a", [null]]'),
    ("[1,2,]", "[1, 2]"),
    ('{x:1,<|"|>y z<|"|>:{w:[true]}, "v": 2}', '{"x": 1, "y z": {"w": [true]}, "v": 2}'),
    ("{x}", None),
    ("]", None),
    ("", None),
]


@pytest.mark.parametrize(("written", "value"), VALUES)
def test_values(written: str, value: str | None) -> None:
    text = f"<|tool_call>call:f{{a:{written}}}<tool_call|>"
    for parts in each_cut(text):
        (call,) = parsed(GemmaParser(), parts)["calls"]
        if value is None:
            assert call[0] == "f" and call[1].startswith('{"a": ')
        else:
            assert call == ("f", f'{{"a": {value}}}')
            json.loads(call[1])


# (text, content, calls)
ONE = '<|tool_call>call:get_weather{city:<|"|>Zürich<|"|>,days:[1,2]}<tool_call|>'
WEATHER = ("get_weather", '{"city": "Zürich", "days": [1, 2]}')
EXAMPLES: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("", "", []),
    ("Hello {you}.", "Hello {you}.", []),
    (ONE, "", [WEATHER]),
    (f"So:\n{ONE} there.", "So: there.", [WEATHER]),
    (f"{ONE}<|tool_call>call:now{{}}<tool_call|>", "", [WEATHER, ("now", "{}")]),
    ("<|tool_call> call:a.b-c{ x : 1 }", "", [("a.b-c", '{"x": 1}')]),
    # What is no call is text.
    ("<|tool_call>5", "<|tool_call>5", []),
    ("<|tool_call>call:", "<|tool_call>call:", []),
    ("<|tool_call>call:f", "<|tool_call>call:f", []),
    ("<|tool_call>call:f(a)", "<|tool_call>call:f(a)", []),
    ("<|tool_call>call: f{}", "<|tool_call>call: f{}", []),
    ("<|tool_call>call:" + "f" * 300 + "{}", "<|tool_call>call:" + "f" * 300 + "{}", []),
    ("<|tool", "<|tool", []),
    # A call that breaks off stays one.
    ('<|tool_call>call:f{a:<|"|>it is <|', "", [("f", '{"a": "it is ')]),
    ("<|tool_call>call:f{a:1", "", [("f", '{"a": ')]),
    ("<|tool_call>call:f{a:1]", "]", [("f", '{"a": 1')]),
]


@pytest.mark.parametrize(("text", "content", "calls"), EXAMPLES)
def test_calls(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for parts in each_cut(text):
        assert parsed(GemmaParser(), parts) == {"content": content, "reasoning": "", "calls": calls}


def test_no_more_calls_than_are_wanted() -> None:
    found = parsed(GemmaParser(most_calls=1), [ONE, ONE, "more"])
    assert found == {"content": "", "reasoning": "", "calls": [WEATHER]}


@given(
    fragments=st.lists(
        st.sampled_from(
            ["<|tool_call>", "<tool_call|>", "call:f{", '<|"|>', "a:", ",", "{", "}", "[", "]", '"', " ", "1", "<|"]
        ),
        max_size=14,
    ),
    places=st.lists(st.integers(0, 99), max_size=6),
)
def test_any_text_cut_anyhow_gives_the_same(fragments: list[str], places: list[int]) -> None:
    text = "".join(fragments)

    def found(parts: list[str]) -> dict[str, Any]:
        return parsed(GemmaParser(), parts)

    whole = found([text])
    assert found(cut(text, places)) == whole and found(list(text)) == whole
    if "<|tool_call>" not in text:
        assert whole == {"content": text, "reasoning": "", "calls": []}
