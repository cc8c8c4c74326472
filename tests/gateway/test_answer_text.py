"""What a model has written, in all dialects, whole and as events."""

import json
from typing import Any

import pytest

from penstock.gateway.answer_text import AnswerText

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}


def written(*said: dict[str, Any]) -> str:
    text = AnswerText()
    for each in said:
        text.take_event(json.dumps(each).encode())
    assert text.length >= sum(map(len, str(text).split("\n")))
    return str(text)


def choice(index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta}]}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}, "a\nb"),
        ({"choices": [{"message": {"role": "assistant", "content": "a", "refusal": "b"}}]}, "a\nb"),
        (
            {"choices": [{"message": {"content": None, "reasoning_content": "a", "tool_calls": [CALL]}}]},
            'a\nlook\n{"a": 1}',
        ),
        ({"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}}]}, "a"),
        (
            {
                "type": "message",
                "content": [
                    {"type": "thinking", "thinking": "a"},
                    {"type": "text", "text": "b"},
                    {"type": "tool_use", "name": "look", "input": {"x": "c"}},
                ],
            },
            'a\nb\nlook\n{"x":"c"}',
        ),
        (
            {
                "object": "response",
                "output": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]},
                    {"type": "message", "content": [{"type": "output_text", "text": "b"}, {"refusal": "c"}]},
                    {"type": "function_call", "name": "look", "arguments": "{}"},
                ],
            },
            "a\nb\nc\nlook\n{}",
        ),
        ({"error": {"message": "no"}}, ""),
        ({"choices": None, "content": "a"}, ""),
    ],
)
def test_whole_answers(said: dict[str, Any], text: str) -> None:
    assert written(said) == text


def test_events_of_chats() -> None:
    calls = [{"index": 0, "function": {"name": "look", "arguments": ""}}, {"index": 1, "function": {"name": "see"}}]
    more = [{"index": 0, "function": {"arguments": "{"}}], [{"index": 0, "function": {"arguments": "}"}}]
    events = [choice(role="assistant", content=""), choice(content="a"), choice(1, content="x"), choice(content="b")]
    events += [choice(tool_calls=calls), *(choice(tool_calls=each) for each in more)]
    assert written(*events) == "ab\nx\nlook\nsee\n{}"


def test_events_of_messages() -> None:
    def delta(index: int, **fields: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    start = {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "name": "look", "input": {}},
    }
    events = [
        {"type": "message_start", "message": {"type": "message", "content": []}},
        delta(0, type="thinking_delta", thinking="a"),
        delta(0, type="thinking_delta", thinking="b"),
        start,
        delta(1, type="input_json_delta", partial_json='{"x":'),
        delta(1, type="input_json_delta", partial_json="1}"),
    ]
    assert written(*events) == 'ab\nlook\n{"x":1}'


def test_events_of_responses() -> None:
    def delta(kind: str, index: int, text: str) -> dict[str, Any]:
        return {"type": f"response.{kind}.delta", "output_index": index, "content_index": 0, "delta": text}

    events = [
        delta("reasoning_summary_text", 0, "a"),
        delta("output_text", 1, "b"),
        delta("output_text", 1, "c"),
        {"type": "response.output_item.added", "output_index": 2, "item": {"type": "function_call", "name": "look"}},
        delta("function_call_arguments", 2, "{}"),
    ]
    assert written(*events) == "a\nbc\nlook\n{}"
    # What is said at the end to be all of it holds.
    whole = {"output": [{"type": "message", "content": [{"type": "output_text", "text": "bcd"}]}]}
    assert written(*events, {"type": "response.completed", "response": whole}) == "bcd"
