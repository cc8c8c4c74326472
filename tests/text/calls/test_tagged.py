"""Calls between tags: what they come to, and the same however the output is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text.calls.tagged import GlmParser, QwenParser
from support.pieces import cut, each_cut, parsed

# Of the tool f: a and b are text, b may be null.
TEXTS = {"f": {"a": False, "b": True}}
KINDS = {"qwen3_coder": QwenParser, "glm45": GlmParser}


def qwen(*arguments: tuple[str, str], name: str = "f") -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def glm(*arguments: tuple[str, str], name: str = "f") -> str:
    written = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments)
    return f"<tool_call>{name}\n{written}</tool_call>"


WRITERS = {"qwen3_coder": qwen, "glm45": glm}

# (what is written, what it comes to)
VALUES = [
    ("a", "Zürich", '"Zürich"'),
    ("a", "5", '"5"'),
    ("a", "null", '"null"'),
    ("a", 'say "x"\\n\tnow', '"say \\"x\\"\\\\n\\tnow"'),
    ("a", "", '""'),
    ("a", "\none\n\ntwo\n", '"\\none\\n\\ntwo\\n"'),
    ("a", "a < b </ </par </arg", '"a < b </ </par </arg"'),
    ("a", "<tool_call>", '"<tool_call>"'),
    ("b", "null", "null"),
    ("b", "None", "null"),
    ("b", "5", '"5"'),
    ("b", "nullable", '"nullable"'),
    ("c", "5", "5"),
    ("c", "-2.5e1", "-2.5e1"),
    ("c", "True", "true"),
    ("c", "None", "null"),
    ("c", '{"x": [1, {"y": null}]}', '{"x": [1, {"y": null}]}'),
    ("c", '["a", "</parameter></arg_value>"]', '["a", "</parameter></arg_value>"]'),
    ("c", "Zürich", '"Zürich"'),
    ("c", '"Zürich"', '"Zürich"'),
    ("c", '"Zürich" it is', '"\\"Zürich\\" it is"'),
    ("c", "[1, 2", '"[1, 2"'),
    ("c", "01", '"01"'),
]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("key", "written", "value"), VALUES)
def test_values(name: str, key: str, written: str, value: str) -> None:
    text = WRITERS[name]((key, written))
    expected = {"content": "", "reasoning": "", "calls": [("f", f'{{"{key}": {value}}}')]}
    for parts in each_cut(text):
        assert parsed(KINDS[name](texts=TEXTS), parts) == expected


def test_without_line_breaks_around_values() -> None:
    compact = "<tool_call><function=f><parameter=a>x</parameter><parameter=c>5</parameter></function></tool_call>"
    for parts in each_cut(compact):
        assert parsed(QwenParser(texts=TEXTS), parts)["calls"] == [("f", '{"a": "x", "c": 5}')]
    compact = "<tool_call>f<arg_key>a</arg_key><arg_value>\nx\n</arg_value></tool_call>"
    for parts in each_cut(compact):
        assert parsed(GlmParser(texts=TEXTS), parts)["calls"] == [("f", '{"a": "\\nx\\n"}')]


@pytest.mark.parametrize("name", KINDS)
def test_several_calls_and_text(name: str) -> None:
    write = WRITERS[name]
    text = f"Let me see.\n{write(('a', 'x'), ('c', '1'))}\n{write(name='now')} So."
    expected = {"content": "Let me see. So.", "reasoning": "", "calls": [("f", '{"a": "x", "c": 1}'), ("now", "{}")]}
    for parts in each_cut(text):
        assert parsed(KINDS[name](texts=TEXTS), parts) == expected
    first = parsed(KINDS[name](1, TEXTS), [text])
    assert first == expected | {"content": "Let me see.", "calls": expected["calls"][:1]}


# (format, text, content, calls)
BROKEN: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("qwen3_coder", "<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
    ("qwen3_coder", "<tool_call><function=>", "<tool_call><function=>", []),
    ("qwen3_coder", "<tool_call><function=a b>", "<tool_call><function=a b>", []),
    ("qwen3_coder", "<tool_call><function=f>text", "<tool_call><function=f>text", []),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<para", "<tool_call>\n<function=f>\n<para", []),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>x", "", [("f", '{"a": "x')]),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>x</parameter> <b>", " <b>", [("f", '{"a": "x"')]),
    ("qwen3_coder", "<tool_call><function=f></function> </tool_", "", [("f", "{}")]),
    ("glm45", "<tool_call>f g</tool_call>", "<tool_call>f g</tool_call>", []),
    ("glm45", "<tool_call></tool_call>", "<tool_call></tool_call>", []),
    ("glm45", "<tool_call>" + "f" * 300, "<tool_call>" + "f" * 300, []),
    ("glm45", "<tool_call>f", "<tool_call>f", []),
    ("glm45", "<tool_call>f<arg_key>a</arg_key> x", " x", [("f", "{")]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), BROKEN)
def test_what_is_no_call_is_text(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for parts in each_cut(text):
        assert parsed(KINDS[name](texts=TEXTS), parts) == {"content": content, "reasoning": "", "calls": calls}


def test_texts_are_told_as_they_come() -> None:
    parser = QwenParser(texts=TEXTS)
    told = [
        "".join(getattr(piece, "text", "") for piece in parser.feed(part))
        for part in (
            "<tool_call><function=f><parameter=a>\n",
            "one",
            " two\n",
            "three",
            "\n</parame",
            "ter></function>",
        )
    ]
    assert told == ['{"a": ', '"one', " two", "\\nthree", "", '"}']


FRAGMENTS = ["<tool_call>", "</tool_call>", "<function=", "f", ">", "<parameter=", "a", "c", "</parameter>"]
FRAGMENTS += ["</function>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function=f>", "<parameter=c>"]
FRAGMENTS += ["\n", " ", '"', "{", "}", "1", "</", "é", "\\", qwen(("a", "x")), glm(("c", "1")), "<tool_call>f"]


@pytest.mark.parametrize("name", KINDS)
@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=16), places=st.lists(st.integers(0, 300), max_size=6))
def test_any_text_cut_anyhow_gives_the_same_and_loses_nothing(
    name: str, fragments: list[str], places: list[int]
) -> None:
    text = "".join(fragments)
    whole = parsed(KINDS[name](texts=TEXTS), [text])
    assert parsed(KINDS[name](texts=TEXTS), cut(text, places)) == whole
    assert parsed(KINDS[name](texts=TEXTS), list(text)) == whole
    if not whole["calls"]:
        assert whole["content"] == text
    first = parsed(KINDS[name](1, TEXTS), cut(text, places))
    assert first["calls"] == whole["calls"][:1] and whole["content"].startswith(first["content"])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner | st.text(max_size=9), max_size=3)
        | st.dictionaries(st.text(max_size=3), inner | st.text(max_size=9), max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("name", KINDS)
@given(
    text=st.text(max_size=30).filter(lambda text: "</" not in text),
    anything=ANYTHING,
    places=st.lists(st.integers(0, 300), max_size=8),
)
def test_what_was_written_is_read(name: str, text: str, anything: Any, places: list[int]) -> None:
    written = WRITERS[name](("a", text), ("c", json.dumps(anything)))
    ((called, arguments),) = parsed(KINDS[name](texts=TEXTS), cut(written, places))["calls"]
    assert called == "f" and json.loads(arguments) == {"a": text, "c": anything}


@pytest.mark.parametrize("name", KINDS)
def test_long_outputs_take_linear_time(name: str) -> None:
    begin = {"qwen3_coder": "<tool_call><function=f><parameter=", "glm45": "<tool_call>f<arg_key>"}[name]
    value = {"qwen3_coder": "a>", "glm45": "a</arg_key><arg_value>"}[name]
    texts = (
        "<tool_call>" * 20_000,
        begin + "k" * 200_000,
        begin + value + "<" * 200_000,
        begin + value + "\n" * 200_000,
    )
    for text in texts:
        parser = KINDS[name](texts=TEXTS)
        for start in range(0, len(text), 4):
            parser.feed(text[start : start + 4])
        parser.finish()
