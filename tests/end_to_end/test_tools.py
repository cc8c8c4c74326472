"""Tools with a real model over HTTP: calls that must be made are made, and fit their schemas."""

import json
from typing import Any

import jsonschema
import openai
import pytest

from support.live_server import RunningServer, serving
from support.waiting import PATIENCE

MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Zürich?"}]
SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "paint": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


def tools(strict: bool = False) -> Any:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]


@pytest.fixture(scope="module")
def client(bundled: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=bundled.base + "/v1", api_key="unused", max_retries=0, timeout=PATIENCE)


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm45", "pythonic"])
def test_formats_that_write_parameters_one_by_one(parser: str) -> None:
    with serving(None, "--threads", "1", "--tool-call-parser", parser) as server:
        client = openai.OpenAI(base_url=server.base + "/v1", api_key="unused", max_retries=0, timeout=PATIENCE)
        asked: Any = {"model": "haiku", "messages": MESSAGES, "tools": tools(), "tool_choice": "required"}
        answer = client.chat.completions.create(**asked, n=16, seed=1, temperature=1, max_tokens=300)
        finished = [choice for choice in answer.choices if choice.finish_reason == "tool_calls"]
        # The others are cut off in some long text.
        assert len(finished) >= 4
        for choice in finished:
            assert choice.message.content is None and check(choice.message.tool_calls)
        named: Any = {"type": "function", "function": {"name": "get_weather"}}
        asked |= {"tool_choice": named, "seed": 3, "temperature": 1, "max_tokens": 200}
        choice = client.chat.completions.create(**asked).choices[0]
        arguments = ""
        for chunk in client.chat.completions.create(**asked, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                arguments += (call.function and call.function.arguments) or ""
        (whole,) = choice.message.tool_calls or []
        assert whole.type == "function" and arguments == whole.function.arguments
        if choice.finish_reason == "tool_calls":
            assert check([whole]) == ["get_weather"]


def check(calls: Any) -> list[str]:
    """The names of the calls, all of which fit their schemas."""
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    return [call.function.name for call in calls]


def test_required_calls_are_made(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="haiku", messages=MESSAGES, tools=tools(), tool_choice="required", n=8, temperature=1, max_tokens=400
    )
    finished = [choice for choice in answer.choices if choice.finish_reason == "tool_calls"]
    assert len(finished) >= 4
    for choice in finished:
        assert choice.message.content is None and check(choice.message.tool_calls)


def test_a_named_call_is_made_once_streamed_or_not(client: openai.OpenAI) -> None:
    request: Any = {
        "model": "haiku",
        "messages": MESSAGES,
        "tools": tools(),
        "tool_choice": {"type": "function", "function": {"name": "paint"}},
        "temperature": 1,
        "seed": 7,
        "max_tokens": 100,
    }
    choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls" and check(choice.message.tool_calls) == ["paint"]
    arguments = ""
    for chunk in client.chat.completions.create(**request, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            arguments += call.function.arguments or ""
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and arguments == call.function.arguments


def test_calls_of_strict_functions_fit_their_schemas(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="haiku", messages=MESSAGES, tools=tools(strict=True), n=8, temperature=1, max_tokens=200
    )
    for choice in answer.choices:
        if choice.finish_reason != "length":
            names = check(choice.message.tool_calls or [])
            assert (choice.finish_reason == "tool_calls") == bool(names)


def test_one_call_where_several_are_not_wanted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="haiku",
        messages=MESSAGES,
        tools=tools(),
        tool_choice="required",
        parallel_tool_calls=False,
        n=4,
        temperature=1,
        max_tokens=200,
    )
    for choice in answer.choices:
        assert choice.finish_reason == "length" or len(check(choice.message.tool_calls)) == 1


def test_a_call_or_an_answer_in_json(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    answer = client.chat.completions.create(
        model="haiku",
        messages=MESSAGES,
        tools=tools(),
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        n=8,
        temperature=1,
        max_tokens=200,
    )
    for choice in answer.choices:
        if choice.finish_reason == "tool_calls":
            assert check(choice.message.tool_calls)
        elif choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content or ""), schema)


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_keyword(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    strict: Any = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        client.chat.completions.create(model="haiku", messages=MESSAGES, tools=strict)
    assert caught.value.param == "tools"
