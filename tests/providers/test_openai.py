"""OpenAI's chats: what is asked, and how answers are read."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.requests import ChatFields, Message
from penstock.core.errors import InvalidParameter
from penstock.providers.errors import BrokenAnswer
from penstock.providers.openai import OpenAIChat, OpenAIReader
from penstock.providers.told import Step, Usage
from penstock.text.pieces import CallArguments, CallStart, Content
from support.providers import chunk

HELLO = [Message(role="user", content="Hello")]


def asked(api: OpenAIChat, **fields: Any) -> dict[str, Any]:
    """The body for a chat."""
    found: dict[str, Any] = json.loads(api.body(ChatFields(messages=HELLO, **fields), "m", 77))
    return found


def read(*chunks: dict[str, Any]) -> list[Step]:
    """All that one answer says."""
    reader = OpenAIReader()
    return [step for each in chunks for step in reader.read(json.dumps(each).encode())]


def calls(steps: list[Step]) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call; each is written to its end before the next one begins."""
    found: list[list[str]] = []
    for step in steps:
        for piece in step.pieces:
            if isinstance(piece, CallStart):
                assert piece.index == len(found)
                found.append([step.call_id, piece.name, ""])
            elif isinstance(piece, CallArguments):
                assert piece.index == len(found) - 1
                found[-1][2] += piece.text
    return [(each[0], each[1], each[2]) for each in found]


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: str | None = None) -> Any:
    """A part of a call of a tool."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields = {"index": index, "id": id, "function": function}
    return {key: value for key, value in fields.items() if value is not None}


def test_there_is_always_a_bound() -> None:
    assert asked(OpenAIChat())["max_completion_tokens"] == 77
    assert asked(OpenAIChat(), max_tokens=5)["max_completion_tokens"] == 5
    other = asked(OpenAIChat("max_tokens", tells_usage=False), max_completion_tokens=5)
    assert other["max_tokens"] == 5 and not {"stream_options", "max_completion_tokens"} & other.keys()
    assert asked(OpenAIChat())["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": ["x"]}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "foo"}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        OpenAIChat().check(ChatFields(messages=HELLO, **fields))
    assert refused.value.param == param


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[Any], list[tuple[str, str, str]]]:
    """Parts of calls in any order that keeps that of each, and the calls."""
    whole = [
        (f"id{i}", f"tool{i}", draw(st.lists(st.text(max_size=3), max_size=4))) for i in range(draw(st.integers(1, 4)))
    ]
    turns = draw(st.permutations([i for i, (_, _, parts) in enumerate(whole) for _ in parts]))
    left = [list(parts) for _, _, parts in whole]
    found = [call(i, id, name, "") for i, (id, name, _) in enumerate(whole)]
    found += [call(i, arguments=left[i].pop(0)) for i in turns]
    return found, [(id, name, "".join(parts)) for id, name, parts in whole]


@given(interleaved(), st.booleans())
def test_parallel_calls_may_come_interleaved(
    given_: tuple[list[Any], list[tuple[str, str, str]]], at_once: bool
) -> None:
    parts, expected = given_
    deltas = [chunk({"tool_calls": parts})] if at_once else [chunk({"tool_calls": [each]}) for each in parts]
    assert calls(read(*deltas, chunk({}, "tool_calls"))) == expected


def test_the_first_call_is_written_as_it_comes() -> None:
    reader = OpenAIReader()
    for part, piece in ((call(0, "a", "f", ""), CallStart(0, "f")), (call(0, arguments="{"), CallArguments(0, "{"))):
        [step] = reader.read(json.dumps(chunk({"tool_calls": [part]})).encode())
        assert step.pieces == [piece]


@pytest.mark.parametrize("index", [0, None])
def test_calls_may_all_have_one_index_or_none(index: int | None) -> None:
    parts = [call(index, "a", "f", '{"x"'), call(index, arguments=":1}"), call(index, "b", "f", "{}")]
    steps = read(*(chunk({"tool_calls": [each]}) for each in parts), chunk({}, "tool_calls"))
    assert calls(steps) == [("a", "f", '{"x":1}'), ("b", "f", "{}")]


def test_a_call_whose_name_is_told_again_is_the_same() -> None:
    parts = [call(0, "a", "f", "{"), call(0, "a", "f", "}"), call(0, None, "f", "")]
    assert calls(read(*(chunk({"tool_calls": [each]}) for each in parts))) == [("a", "f", "{}")]


@pytest.mark.parametrize("part", [{}, call(0, arguments="{}"), call(None, "a"), {"function": None}])
def test_a_call_that_has_not_begun_is_broken(part: dict[str, Any]) -> None:
    with pytest.raises(BrokenAnswer, match="not begun"):
        read(chunk({"tool_calls": [part]}))


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(5, 0, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 107}, Usage(5, 0, 102)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": None}, Usage(5, 0, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 3}, Usage(5, 0, 2)),
        ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, None),
        ({}, None),
    ],
)
def test_usage_as_it_is_told(told: dict[str, Any], usage: Usage | None) -> None:
    assert read({"choices": [], "usage": told}) == ([] if usage is None else [Step(usage=usage)])


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "stop"), ("length", "length"), ("model_length", "length"), ("tool_calls", "stop")]
)
def test_how_it_ended(reason: str, finish: str) -> None:
    assert [each.finish for each in read(chunk({}, reason))] == [finish]


@pytest.mark.parametrize("reason", ["error", "insufficient_system_resource", "abort"])
def test_what_did_not_end_is_broken(reason: str) -> None:
    with pytest.raises(BrokenAnswer, match=reason):
        read(chunk({}, reason))


def test_an_unknown_end_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.providers"):
        assert [read(chunk({}, "a-new-one"))[0].finish for _ in range(3)] == ["stop"] * 3
    assert [each.getMessage() for each in caplog.records if "a-new-one" in each.getMessage()] != []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[]", b'{"error":' + b"[" * 100_000, b'{"choices": [{"delta": 1}]}'])
def test_what_cannot_be_read_is_broken(data: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        OpenAIReader().read(data)


def test_an_error_of_the_account_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BrokenAnswer) as broken:
        read({"error": {"message": "the billing of Jo", "code": 1}})
    assert "Jo" not in str(broken.value) and "Jo" in caplog.text
    with pytest.raises(BrokenAnswer, match=r"an error \(server_error\); the gateway's log says which") as broken:
        read({"error": {"message": "Jo has no node left", "type": "server_error", "code": None}})
    assert "Jo" not in str(broken.value) and "no node left" in caplog.text


def test_nulls_are_nothing() -> None:
    assert read({"choices": None}, {"choices": [{"delta": None}]}, chunk({"content": "a", "tool_calls": None})) == [
        Step(0, [Content("a")])
    ]
