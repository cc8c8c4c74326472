"""Reasoning at an answer's beginning, alone and before calls of tools, the same however the output is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text.calls.parser import HermesParser
from penstock.text.reasoning import ReasoningParser
from support.pieces import cut, every_cut, parsed

# (text, whether the prompt has opened the block, reasoning, content)
EXAMPLES = [
    ("", False, "", ""),
    ("Hello", False, "", "Hello"),
    ("<think>Let me see.</think>Hello", False, "Let me see.", "Hello"),
    ("\n<think>\nOne.\n\nTwo.\n</think>\n\nHello\n", False, "One.\n\nTwo.", "Hello\n"),
    ("One.</think>\n\nHello", True, "One.", "Hello"),
    ("\n<think>One.</think>Hello", True, "One.", "Hello"),
    ("<think>\n\n</think>\n\nHello", False, "", "Hello"),
    ("\n\n</think>Hello", True, "", "Hello"),
    ("<think>It never ends </thin", False, "It never ends </thin", ""),
    ("It never ends \n", True, "It never ends", ""),
    ("<thi", False, "", "<thi"),
    (" <thi", True, "<thi", ""),
    ("  Hi <think>x</think>", False, "", "  Hi <think>x</think>"),
    ("<think>a <think> b</think> c</think>", False, "a <think> b", "c</think>"),
    ("\n ", False, "", "\n "),
]


@pytest.mark.parametrize(("text", "opened", "reasoning", "content"), EXAMPLES)
def test_reasoning(text: str, opened: bool, reasoning: str, content: str) -> None:
    for parts in every_cut(text):
        found = parsed(ReasoningParser(opened=opened), parts)
        assert found == {"content": content, "reasoning": reasoning, "calls": []}
        hidden = parsed(ReasoningParser(opened=opened, shown=False), parts)
        assert hidden == {"content": content, "reasoning": "", "calls": []}


@pytest.mark.parametrize(("text", "opened", "reasoning", "content"), EXAMPLES)
def test_marks_are_those_of_the_model(text: str, opened: bool, reasoning: str, content: str) -> None:
    marks = {"</think>": "<channel|>", "<think>": "<|channel>thought\n", "</thin": "<channe", "<thi": "<|chan"}

    def other(text: str) -> str:
        for mark, theirs in marks.items():
            text = text.replace(mark, theirs)
        return text

    for parts in (list(other(text)), [other(text)]):
        found = parsed(ReasoningParser(opened=opened, marks="gemma4"), parts)
        assert found == {"content": other(content), "reasoning": other(reasoning), "calls": []}


def test_calls_after_reasoning_are_calls_and_in_it_they_are_not() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    text = f"<think>\nMaybe {call}\n</think>\n\nWell.\n{call}"
    expected = {"content": "Well.", "reasoning": f"Maybe {call}", "calls": [("f", '{"a": 1}')]}
    for parts in every_cut(text):
        assert parsed(ReasoningParser(HermesParser()), parts) == expected
    parser = ReasoningParser(HermesParser(most_calls=1), opened=True)
    parser.feed(f"Hm.</think>{call}")
    assert parser.done


@given(
    fragments=st.lists(
        st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "<tool_call>", '{"name": "f"}']),
        max_size=12,
    ),
    opened=st.booleans(),
    places=st.lists(st.integers(0, 99), max_size=6),
)
def test_any_text_cut_anyhow_gives_the_same(fragments: list[str], opened: bool, places: list[int]) -> None:
    text = "".join(fragments)

    def found(parts: list[str]) -> dict[str, Any]:
        return parsed(ReasoningParser(HermesParser(), opened=opened), parts)

    whole = found([text])
    assert found(cut(text, places)) == whole and found(list(text)) == whole
    if not opened and not text.lstrip().startswith("<think>"):
        assert whole["reasoning"] == "" and whole["calls"] or whole["content"] == text
