"""Calls in Python's notation: what they come to, and the same however the output is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text.calls.python_calls import PythonParser
from support.pieces import cut, each_cut, parsed

# What is written, and the JSON that it comes to; None where it is no literal.
VALUES: list[tuple[str, str | None]] = [
    ('"x"', '"x"'),
    ("'it\"s'", '"it\\"s"'),
    (r"'it\'s \n\t\\ \x41 \u00e9 \ud83d\ude80 \/ \q'", r'''"it's \n\t\\ \u0041 \u00e9 \ud83d\ude80 / \\q"'''),
    (r"'\U0001F680'", '"🚀"'),
    ("'Zürich, (CH) [x] = {y}'", '"Zürich, (CH) [x] = {y}"'),
    ("''", '""'),
    ("5", "5"),
    ("-2.5e1", "-2.5e1"),
    ("1_000", "1000"),
    ("+7", "7"),
    (".5", "0.5"),
    ("1.", "1.0"),
    ("True", "true"),
    ("None", "null"),
    ("false", "false"),
    ("[]", "[]"),
    ("{}", "{}"),
    ("[1, 'a', [None]]", '[1, "a", [null]]'),
    ("[1,2,]", "[1, 2]"),
    ("(1, 2)", "[1, 2]"),
    ("{'a': 1, \"b\": {'c': [True]},}", '{"a": 1, "b": {"c": [true]}}'),
    ("{ 'a' : 1 }", '{"a": 1}'),
    ("foo", None),
    ("r'x'", None),
    ("1e999x", None),
    ("-inf", None),
    ("g(1)", None),
    ("=1", None),
    ("", None),
]


@pytest.mark.parametrize(("written", "value"), VALUES)
def test_values(written: str, value: str | None) -> None:
    text = f"[f(a={written})]"
    calls = [] if value is None else [("f", f'{{"a": {value}}}')]
    for parts in each_cut(text):
        assert parsed(PythonParser(), parts) == {"content": "" if calls else text, "reasoning": "", "calls": calls}
    if value is not None:
        json.loads(value)


TWO = [("get_weather", '{"city": "Zürich", "days": [1, 2]}'), ("now", "{}")]
CALLS = "[get_weather(city='Zürich', days=[1, 2]), now()]"
# (text, content, calls)
EXAMPLES: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("", "", []),
    ("Hello [you].", "Hello [you].", []),
    (CALLS, "", TWO),
    (f" \n{CALLS}\n", "", TWO),
    (f"<|python_start|>{CALLS}<|python_end|>", "", TWO),
    (f"So: <|python_start|> {CALLS} <|python_end|> there.", "So: there.", TWO),
    (f"<|python_start|>{CALLS}", "", TWO),
    ("[ f( a = 1 , b = 'x' , ) , g ( ) ]", " , g ( ) ]", [("f", '{"a": 1, "b": "x"}')]),
    ("[a.b-c(x=1)] done", " done", [("a.b-c", '{"x": 1}')]),
    # What is no call is text.
    (f"So: {CALLS}", f"So: {CALLS}", []),
    ("[1, 2, 3]", "[1, 2, 3]", []),
    ('["f(a=1)"]', '["f(a=1)"]', []),
    ("[see (below)]", "[see (below)]", []),
    ("[f(1)]", "[f(1)]", []),
    ("[f(a)]", "[f(a)]", []),
    ("[f(a=", "[f(a=", []),
    ("[" + "f" * 300 + "()]", "[" + "f" * 300 + "()]", []),
    ("<|python_start|>print(1)", "<|python_start|>print(1)", []),
    ("<|python", "<|python", []),
    # A call that breaks off stays one.
    ("[f(a='it is", "", [("f", '{"a": "it is')]),
    ("[f(a=1, b=oops)]", "oops)]", [("f", '{"a": 1, "b": ')]),
    ("[f(a=1, b)]", "b)]", [("f", '{"a": 1')]),
    ("[f(a=[foo])]", "foo])]", [("f", '{"a": [')]),
    ("[f(a={'x': })]", "})]", [("f", '{"a": {"x": ')]),
    ("[f(a=1), 5]", ", 5]", [("f", '{"a": 1}')]),
    ("[f()", "", [("f", "{}")]),
]


@pytest.mark.parametrize(("text", "content", "calls"), EXAMPLES)
def test_formats(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for parts in each_cut(text):
        assert parsed(PythonParser(), parts) == {"content": content, "reasoning": "", "calls": calls}


def test_strings_are_told_as_they_come() -> None:
    parser = PythonParser()
    told = ["".join(getattr(piece, "text", "") for piece in parser.feed(part)) for part in ("[f(", "a='", "on", "e')")]
    assert told == ["", '{"a": "', "on", 'e"}']


FRAGMENTS = ["[", "]", "(", ")", "f", "g(", "a=", ",", ", ", "=", "'", '"', "\\", "x", "1", "-", "True", "{", "}", ":"]
FRAGMENTS += [" ", "\n", "é", "[f(", "f(a=", "[f(a=1), g()]", "\\u00", "'x'", "{'k': "]
FRAGMENTS += ["<|python_start|>", "<|python_end|>", "<|py"]


@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=16), places=st.lists(st.integers(0, 200), max_size=6))
def test_any_text_cut_anyhow_gives_the_same_and_loses_nothing(fragments: list[str], places: list[int]) -> None:
    text = "".join(fragments)
    whole = parsed(PythonParser(), [text])
    assert parsed(PythonParser(), cut(text, places)) == whole
    assert parsed(PythonParser(), list(text)) == whole
    if not whole["calls"]:
        assert whole["content"] == text
    first = parsed(PythonParser(most_calls=1), cut(text, places))
    assert first["calls"] == whole["calls"][:1] and whole["content"].startswith(first["content"])


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    arguments=st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), LITERALS, max_size=3),
    as_json=st.booleans(),
    places=st.lists(st.integers(0, 400), max_size=8),
)
def test_what_python_and_json_write_is_read(arguments: dict[str, Any], as_json: bool, places: list[int]) -> None:
    write = json.dumps if as_json else repr
    text = f"[f({', '.join(f'{name}={write(value)}' for name, value in arguments.items())})]"
    ((called, read),) = parsed(PythonParser(), cut(text, places))["calls"]
    assert called == "f" and json.loads(read) == arguments


def test_long_outputs_take_linear_time() -> None:
    for text in ("[f(a='" + "b" * 200_000, "[f(a=" + "[" * 200_000, "[f(a=1), " * 20_000, "<|python_start|>" * 20_000):
        parser = PythonParser()
        for start in range(0, len(text), 4):
            parser.feed(text[start : start + 4])
        parser.finish()
