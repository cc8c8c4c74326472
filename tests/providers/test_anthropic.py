"""Anthropic's messages: what is asked, and how answers are read."""

import json
from typing import Any

import pytest

from penstock.api.requests import ChatFields, FunctionCall, Message, ToolCall
from penstock.api.tools import FunctionFields, ToolFields
from penstock.core.errors import InvalidParameter
from penstock.providers.anthropic import AnthropicMessages, AnthropicReader
from penstock.providers.errors import BrokenAnswer
from penstock.providers.told import Step
from penstock.text.pieces import CallArguments, CallStart

API = AnthropicMessages()
HELLO = Message(role="user", content="Hello")
CALLS = [ToolCall(FunctionCall("f", "{}"), id=each) for each in ("a", "b")]
TOOLS = [ToolFields(FunctionFields("f"))]


def turns(*messages: Message) -> list[dict[str, Any]]:
    """The turns of a chat."""
    chat = ChatFields(messages=list(messages))
    API.check(chat)
    found: list[dict[str, Any]] = json.loads(API.body(chat, "m", 9))["messages"]
    return found


def read(*events: dict[str, Any]) -> list[Step]:
    """All that one answer says."""
    reader = AnthropicReader()
    return [step for each in events for step in reader.read(json.dumps(each).encode())]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "foo"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
         "response_format.json_schema.schema"),
        ({"messages": [HELLO, Message(role="assistant", content="Once")]}, "messages"),
        ({"messages": [Message(role="user", content="Hello", name="Jo")]}, "messages[0].name"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        API.check(ChatFields(**{"messages": [HELLO], **fields}))
    assert refused.value.param == param


def test_a_refusal_is_what_the_assistant_said() -> None:
    said = turns(HELLO, Message(role="assistant", refusal="I cannot."), HELLO)
    assert [each["role"] for each in said] == ["user", "assistant", "user"]
    assert said[1]["content"] == [{"type": "text", "text": "I cannot."}]


def test_results_of_tools_come_first() -> None:
    results = [Message(role="tool", tool_call_id=each, content="x", name="f") for each in ("a", "b")]
    said = turns(HELLO, Message(role="assistant", tool_calls=CALLS), results[0], HELLO, results[1])
    kinds = [(each["type"], each.get("tool_use_id")) for each in said[2]["content"]]
    assert kinds == [("tool_result", "a"), ("tool_result", "b"), ("text", None)]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("end_turn", "stop"), ("tool_use", "stop"), ("max_tokens", "length"), ("refusal", "content_filter"),
     ("one-of-tomorrow", "stop"), (None, None)],
)  # fmt: skip
def test_how_it_ended(reason: str | None, finish: str | None) -> None:
    [step] = read({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}})
    assert step.finish == finish


def test_a_paused_turn_is_broken() -> None:
    with pytest.raises(BrokenAnswer, match="pause_turn"):
        read({"type": "message_delta", "delta": {"stop_reason": "pause_turn"}})


def test_a_call_without_an_id_gets_one() -> None:
    begun = {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}}
    steps = read(begun, {"type": "content_block_stop"}, begun, {"type": "content_block_stop"})
    assert [each.pieces for each in steps] == [
        [CallStart(0, "f")], [CallArguments(0, "{}")], [CallStart(1, "f")], [CallArguments(1, "{}")]
    ]  # fmt: skip
    assert steps[0].call_id and steps[2].call_id and steps[0].call_id != steps[2].call_id


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"type": "x", "y": ' + b"[" * 100_000,
        b'{"type": "content_block_delta", "delta": {"partial_json": "{}"}}',
        b'{"type": "content_block_start", "content_block": {"type": "tool_use", "id": "a"}}',
        b'{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}',
    ],
)
def test_what_cannot_be_is_broken(data: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        AnthropicReader().read(data)


def test_an_error_of_the_account_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BrokenAnswer) as broken:
        read({"type": "error", "error": {"type": "x", "message": "the credit balance of Jo"}})
    assert "Jo" not in str(broken.value) and "Jo" in caplog.text
