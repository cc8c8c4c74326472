"""Calls in the formats of models: what is a call, what is text, and both the same however the output is cut."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.text.calls.formats import PARSERS
from penstock.text.calls.parser import CallParser, HermesParser, LlamaParser, MistralParser
from penstock.text.output_format import Parsing
from support.pieces import cut, every_cut, parsed

WEATHER = '{"name": "get_weather", "arguments": {"city": "Zürich \\"x\\"", "days": [1, 2.5e1]}}'
ARGUMENTS = '{"city": "Zürich \\"x\\"", "days": [1, 2.5e1]}'
CALL = ("get_weather", ARGUMENTS)
LLAMA = WEATHER.replace("arguments", "parameters")


def tag(call: str) -> str:
    return f"<tool_call>{call}</tool_call>"


# (text, content, calls)
HERMES: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("", "", []),
    ("Hello, <b>you</b>.\n", "Hello, <b>you</b>.\n", []),
    (tag(WEATHER), "", [CALL]),
    (f"\n\n<tool_call>\n{WEATHER}\n</tool_call>\n", "", [CALL]),
    (f"Let me see.\n<tool_call>\n{WEATHER}\n</tool_call>", "Let me see.", [CALL]),
    (f"One: {tag(WEATHER)}\n{tag(WEATHER)} and two", "One: and two", [CALL, CALL]),
    (f"a {tag(WEATHER)} b {tag(WEATHER)} c", "a b c", [CALL, CALL]),
    (f"<tool_call>{WEATHER}<tool_call>{WEATHER}", "", [CALL, CALL]),
    (f"{tag(WEATHER)}</tool", "</tool", [CALL]),
    (f"<tool_call>{WEATHER}</tool", "", [CALL]),
    # Arguments before the name, other keys, none at all, and null.
    (tag(f'{{"id": 7, "arguments": {ARGUMENTS}, "x": [{{}}], "name": "get_weather"}}'), "", [CALL]),
    (tag('{"name": "now"}'), "", [("now", "{}")]),
    (tag('{"name": "now", "arguments": null}'), "", [("now", "{}")]),
    (tag('{"name": "now", "arguments": {}, "name": "other", "arguments": {"x": 1}}'), "", [("now", "{}")]),
    (tag('{"n\\u0061me": "n\\u006fw", "parameters": {"a": 1}}'), "", [("now", '{"a": 1}')]),
    # An object in a string, as some models write arguments.
    (tag('{"name": "f", "arguments": "{\\"a\\": [1]}"}'), "", [("f", '{"a": [1]}')]),
    # What is no call is text.
    ("<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
    (tag('{"name": "f", "arguments": [1]}'), tag('{"name": "f", "arguments": [1]}'), []),
    (tag('{"name": "f", "arguments": "a"}'), tag('{"name": "f", "arguments": "a"}'), []),
    (tag('{"name": "f", "arguments": "{}\\ud800"}'), tag('{"name": "f", "arguments": "{}\\ud800"}'), []),
    (tag('{"name": "", "arguments": {}}'), tag('{"name": "", "arguments": {}}'), []),
    (tag('{"name": "\\ud800", "arguments": {}}'), tag('{"name": "\\ud800", "arguments": {}}'), []),
    (tag('{"name": 5, "arguments": {}}'), tag('{"name": 5, "arguments": {}}'), []),
    (tag('{"arguments": {}}'), tag('{"arguments": {}}'), []),
    (tag("{}"), tag("{}"), []),
    (" \n<tool_call> \n", " \n<tool_call> \n", []),
    ('<tool_call>{"name": "get_wea', '<tool_call>{"name": "get_wea', []),
    ("a <tool_cal", "a <tool_cal", []),
    (f"<tool_call>x {tag(WEATHER)}", "<tool_call>x", [CALL]),
    (f"<tool_<tool_call>{WEATHER}", "<tool_", [CALL]),
    (f"{tag(WEATHER)} x </tool_call>", " x </tool_call>", [CALL]),
    # A call that breaks off stays one; what follows its arguments is text where it is no end of a call.
    ('<tool_call>{"name": "f", "arguments": {"a": [1, 2', "", [("f", '{"a": [1, 2')]),
    ('<tool_call>{"name": "f", "arguments": {"a": oops}}', "oops}}", [("f", '{"a": ')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}, oops}', ", oops}", [("f", '{"a": 1}')]),
    (f'<tool_call>{{"name": "f", "arguments": {{"a": "\n{tag(WEATHER)}', "", [("f", '{"a": "'), CALL]),
]
LLAMA3: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("", "", []),
    ("Hello.", "Hello.", []),
    (LLAMA, "", [CALL]),
    (f" \n{LLAMA}\n", "", [CALL]),
    (f"<|python_tag|>{LLAMA}", "", [CALL]),
    (f"<|python_tag|> {LLAMA}; {LLAMA};{LLAMA}", "", [CALL] * 3),
    (f"{LLAMA}\n{LLAMA}<|python_tag|>{LLAMA}", "", [CALL] * 3),
    (f"See: <|python_tag|>{LLAMA}", "See:", [CALL]),
    (WEATHER, "", [CALL]),
    (f'{{"type": "function", {LLAMA[1:]}', "", [CALL]),
    (f"{LLAMA};", "", [CALL]),
    (f"{LLAMA} and more", " and more", [CALL]),
    (f"{LLAMA}; and {LLAMA}", f"; and {LLAMA}", [CALL]),
    ("<|python_tag|>import math", "<|python_tag|>import math", []),
    ("<|python", "<|python", []),
    # Other objects are answers in JSON.
    ('{"name": "Ada", "born": 1815}', '{"name": "Ada", "born": 1815}', []),
    ('{"name": "Ada"}', '{"name": "Ada"}', []),
    ('{"a": {"name": "f", "parameters": {}}}', '{"a": {"name": "f", "parameters": {}}}', []),
    ("{", "{", []),
    (f"Text {LLAMA}", f"Text {LLAMA}", []),
    ('{"name": "f", "parameters": {"a": 1', "", [("f", '{"a": 1')]),
]
MISTRAL: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("", "", []),
    ("Hello [TOOL].", "Hello [TOOL].", []),
    (f"[TOOL_CALLS][{WEATHER}]", "", [CALL]),
    (f"[TOOL_CALLS] [{WEATHER}, {WEATHER}]\n", "", [CALL, CALL]),
    (f'So: [TOOL_CALLS] [{WEATHER[:-1]}, "id": "VvvODy9mT"}}]', "So:", [CALL]),
    (f"[TOOL_CALLS]{WEATHER}", "", [CALL]),
    (f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}", "", [CALL]),
    (f"[TOOL_CALLS]get_weather{ARGUMENTS}[TOOL_CALLS]get_weather {ARGUMENTS}", "", [CALL, CALL]),
    (f"[TOOL_CALLS]get_weather[CALL_ID]a1B2[ARGS] {ARGUMENTS}", "", [CALL]),
    (f"[TOOL_CALLS]get_weather{ARGUMENTS} done", " done", [CALL]),
    (f"[TOOL_CALLS][{WEATHER}] done", " done", [CALL]),
    (f"[TOOL_CALLS][{WEATHER}", "", [CALL]),
    (f"[TOOL_CALLS][{WEATHER} oops]", " oops]", [CALL]),
    ("[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("[TOOL_CALLS] get weather{}", "[TOOL_CALLS] get weather{}", []),
    ("[TOOL_CALLS]f[ARGS] 5", "[TOOL_CALLS]f[ARGS] 5", []),
    ("[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]", []),
    ("[TOOL_CALLS]" + "f" * 300 + "{}", "[TOOL_CALLS]" + "f" * 300 + "{}", []),
    ("[TOOL_CALLS]f[TOOL_CALLS]g{}", "[TOOL_CALLS]f", [("g", "{}")]),
    ("[TOOL_CALLS]f{}[TOOL_CALLS]g", "[TOOL_CALLS]g", [("f", "{}")]),
    ('[TOOL_CALLS]f{"a": oops}', "oops}", [("f", '{"a": ')]),
    ("[TOOL_CAL", "[TOOL_CAL", []),
]
JSON_FORMATS = ("hermes", "llama3", "mistral")
EXAMPLES = [
    (kind, *example)
    for kind, examples in ((HermesParser, HERMES), (LlamaParser, LLAMA3), (MistralParser, MISTRAL))
    for example in examples
]

FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool_", "</", "<"],
    "llama3": ["<|python_tag|>", ";", "; ", "<|", LLAMA],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]", ",", "[TOOL_", "f"],
}
COMMON = ["{", "}", '"name"', '"arguments"', '"parameters"', ":", ",", '"f"', "{}", '"', "\\", " ", "\n", "1", "a", "é"]
PIECES = [*COMMON, WEATHER, '{"name": "f", "arguments": ', '{"arguments": {"a": 1}, "name": "f"}', '{"name": "f"']


@pytest.mark.parametrize(("kind", "text", "content", "calls"), EXAMPLES)
def test_formats(kind: Callable[[], CallParser], text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parsed(kind(), [text]) == {"content": content, "reasoning": "", "calls": calls}


@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, text, *_ in EXAMPLES])
def test_every_cut_gives_the_same(kind: Callable[[], CallParser], text: str, share: float) -> None:
    text = text[:120]
    whole = parsed(kind(), [text])
    for parts in every_cut(text, share):
        assert parsed(kind(), parts) == whole


@pytest.mark.parametrize("name", JSON_FORMATS)
@given(data=st.data())
def test_any_text_cut_anyhow_gives_the_same_and_loses_nothing(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from([*PIECES, *FRAGMENTS[name]]), max_size=14)))
    whole = parsed(PARSERS[name](), [text])
    places = data.draw(st.lists(st.integers(0, 200), max_size=6))
    assert parsed(PARSERS[name](), cut(text, places)) == whole
    assert parsed(PARSERS[name](), list(text)) == whole
    if not whole["calls"]:
        assert whole["content"] == text
    # However many calls there are, those wanted are the first of them.
    first = parsed(PARSERS[name](most_calls=1), cut(text, places))
    assert first["calls"] == whole["calls"][:1] and whole["content"].startswith(first["content"])


def written(name: str, calls: list[tuple[str, str]]) -> str:
    """Calls as a model of this format writes them."""
    key = "parameters" if name == "llama3" else "arguments"
    objects = [f'{{"name": {json.dumps(each)}, "{key}": {arguments}}}' for each, arguments in calls]
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
    if name == "llama3":
        return "; ".join(objects)
    return f"[TOOL_CALLS][{', '.join(objects)}]"


OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)


@pytest.mark.parametrize("name", JSON_FORMATS)
@given(
    calls=st.lists(st.tuples(NAMES, OBJECTS), min_size=1, max_size=3),
    indent=st.sampled_from([None, 2]),
    places=st.lists(st.integers(0, 500), max_size=8),
)
@example(calls=[("f", {"</tool_call>": "<tool_call>"})], indent=None, places=[20, 21])
def test_calls_are_told_to_the_letter(
    name: str, calls: list[tuple[str, dict[str, Any]]], indent: int | None, places: list[int]
) -> None:
    told = [(each, json.dumps(arguments, indent=indent, ensure_ascii=False)) for each, arguments in calls]
    assert parsed(PARSERS[name](), cut(written(name, told), places)) == {
        "content": "",
        "reasoning": "",
        "calls": told,
    }


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_arguments_are_told_as_they_come(name: str) -> None:
    parser = PARSERS[name]()
    key = "parameters" if name == "llama3" else "arguments"
    opener = {"hermes": "<tool_call>", "llama3": "", "mistral": "[TOOL_CALLS]["}[name]
    assert list(parser.feed(f'{opener}{{"name": "f", "{key}": ')) == []
    start, arguments = parser.feed('{"a"')
    assert (start.name, arguments.text) == ("f", '{"a"')  # type: ignore[union-attr]
    assert [piece.text for piece in parser.feed(': "long')] == [': "long']  # type: ignore[union-attr]
    assert [piece.text for piece in parser.feed(' text"}')] == [' text"}']  # type: ignore[union-attr]
    assert list(parser.feed("}")) == []


def test_text_is_held_back_no_longer_than_it_must() -> None:
    parser = HermesParser()
    for text, shown in (("Hi", "Hi"), (" ", ""), ("you <", " you"), ("b>", " <b>"), ("<tool", ""), ("s>", "<tools>")):
        assert "".join(piece.text for piece in parser.feed(text)) == shown  # type: ignore[union-attr]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_after_the_calls_that_are_wanted_nothing_more_is_read(name: str) -> None:
    parser = PARSERS[name](most_calls=1)
    text = written(name, [("f", '{"a": 1}'), ("g", "{}")])
    for place, char in enumerate(text):
        parser.feed(char)
        if parser.done:
            assert text[: place + 1].endswith('{"a": 1}')
            break
    assert parser.done and list(parser.feed("more")) == [] and list(parser.finish()) == []


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_long_outputs_that_are_no_calls_are_text_to_the_last_character(name: str) -> None:
    opener = {"hermes": "<tool_call>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}[name]
    for text in (opener * 20_000, " " * 200_000, f'{opener}{{"arguments": {{"a": "' + "b" * 200_000):
        found = parsed(PARSERS[name](), [text[start : start + 4] for start in range(0, len(text), 4)])
        assert found["content"] == text and not found["calls"]


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": {"a": "}<", "b": [1]}}\n</tool_call>\n' + tag('{"name": "g"}'),
        ),
        ("llama3", '{"name": "f", "parameters": {"a": "x;"}}; {"name": "g", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "["}[TOOL_CALLS]g[ARGS]{}'),
        (
            "qwen3_coder",
            tag("\n<function=f>\n<parameter=a>\nx <\n</parameter>\n<parameter=b>\n[1]\n</parameter>\n</function>\n"),
        ),
        (
            "glm45",
            tag("f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value><arg_key>b</arg_key><arg_value>[1]</arg_value>"),
        ),
        ("pythonic", "[f(a='x]', b=[1, None]), g()]"),
    ],
)
def test_what_is_left_of_a_call_that_was_cut_off_is_neither_content_nor_arguments(calls: str, text: str) -> None:
    """Where the answer is calls and nothing else; wherever it ends, in one piece and character by character."""
    parsing = Parsing(calls=calls, calls_alone=True, texts={"f": {"a": False}})
    whole = parsed(parsing.parser(), [text])
    assert whole["calls"][0][0] == "f" and whole["content"] == ""
    json.loads(whole["calls"][0][1])
    for end in range(len(text)):
        for parts in ([text[:end]], list(text[:end])):
            found = parsed(parsing.parser(), parts)
            assert found["content"] == ""
            for (name, arguments), (whole_name, whole_arguments) in zip(found["calls"], whole["calls"], strict=False):
                assert name == whole_name and whole_arguments.startswith(arguments), (parts, arguments)
