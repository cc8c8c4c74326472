"""Tools with a real model over HTTP: calls that must be made are made, and fit their schemas."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import openai
import pytest

from support.live_server import RunningServer, serving
from support.schemas import AS_CLIENTS_SEND_THEM, UNENFORCEABLE

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
def client(bundled: RunningServer, client_of: Callable[[RunningServer], openai.OpenAI]) -> openai.OpenAI:
    return client_of(bundled)


# What each of them is, without a server: `tests/text/calls` and `tests/api/test_tool_grammars.py`.
@pytest.mark.parametrize(
    "parser", ["glm45", *(pytest.param(parser, marks=pytest.mark.slow) for parser in ("qwen3_coder", "pythonic"))]
)
def test_formats_that_write_parameters_one_by_one(
    parser: str, client_of: Callable[[RunningServer], openai.OpenAI]
) -> None:
    with serving(None, "--threads", "1", "--tool-call-parser", parser) as server:
        client = client_of(server)
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


@pytest.mark.parametrize("keyword", ["uniqueItems", "pattern", "patternProperties"])
def test_what_cannot_be_enforced_is_refused_where_strict_and_told_elsewhere(
    client: openai.OpenAI, keyword: str
) -> None:
    schema = {"type": "object", "properties": {"deep": {"type": "array", "items": UNENFORCEABLE[keyword]}}}
    place = "tools[1].function.parameters"

    def with_tool(strict: bool) -> Any:
        return [*tools(), {"type": "function", "function": {"name": "odd", "parameters": schema, "strict": strict}}]

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="haiku", messages=MESSAGES, tools=with_tool(strict=True))
    assert caught.value.param == place.replace("[1]", "[2]")
    assert f"of the tool 'odd', the keyword '{keyword}' of the property 'deep[]'" in str(caught.value)
    asked: Any = {"model": "haiku", "messages": MESSAGES, "tool_choice": "required", "max_tokens": 4}
    answer = client.chat.completions.with_raw_response.create(**asked, tools=with_tool(strict=False))
    assert not answer.parse().choices[0].message.content
    assert answer.headers["x-penstock-ignored"] == f"tools[2].function.parameters.properties.deep.items.{keyword}"
    # A response format likewise.
    answer_format: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = client.chat.completions.with_raw_response.create(
        model="haiku", messages=MESSAGES, response_format=answer_format, max_tokens=4
    )
    told = f"response_format.json_schema.schema.properties.deep.items.{keyword}"
    assert answer.headers["x-penstock-ignored"] == told
    answer_format["json_schema"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match=rf"the keyword '{re.escape(keyword)}' of the property 'deep"):
        client.chat.completions.create(model="haiku", messages=MESSAGES, response_format=answer_format, max_tokens=4)


def test_a_schema_that_nothing_fits_is_refused_by_its_tool(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]}
    odd: Any = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    with pytest.raises(openai.BadRequestError, match="tools: the schema of the tool 'odd' cannot be used: Unsat.*'a'"):
        client.chat.completions.create(
            model="haiku", messages=MESSAGES, tools=[*tools(), odd], tool_choice="required", max_tokens=4
        )


@pytest.mark.parametrize("strict", [None, True])
def test_tools_as_clients_send_them(client: openai.OpenAI, strict: bool | None) -> None:
    """Each is called, all of its schema is held to, and nothing is told to be left out."""
    names = ["get", "get.more", "get-more", "mcp__server__" + "x" * 60, "g", "Get", "get_", "a.b.c", "_"]
    for name, function in zip(names, AS_CLIENTS_SEND_THEM, strict=True):
        offered: Any = {"type": "function", "function": {"name": name, "strict": strict} | function}
        answer = client.chat.completions.with_raw_response.create(
            model="haiku",
            messages=MESSAGES,
            tools=[offered, *tools()],
            tool_choice={"type": "function", "function": {"name": name}},
            temperature=1,
            seed=2,
            max_tokens=120,
        )
        assert "x-penstock-ignored" not in answer.headers
        choice = answer.parse().choices[0]
        assert not choice.message.content
        if choice.finish_reason == "tool_calls":
            (call,) = choice.message.tool_calls or []
            assert call.type == "function" and call.function.name == name
            jsonschema.validate(json.loads(call.function.arguments), function.get("parameters") or {})


def test_a_call_that_is_cut_off_has_no_marks_in_it(client: openai.OpenAI) -> None:
    """Whole and streamed, after any number of tokens."""
    request: Any = {"model": "haiku", "messages": MESSAGES, "tools": tools(), "tool_choice": "required", "seed": 4}
    whole = client.chat.completions.create(**request, max_tokens=40).choices[0].message.tool_calls or []
    assert whole and whole[0].type == "function"
    for most in range(1, 25, 4):
        choice = client.chat.completions.create(**request, max_tokens=most).choices[0]
        arguments = ""
        for chunk in client.chat.completions.create(**request, max_tokens=most, stream=True):
            assert not chunk.choices[0].delta.content
            for call in chunk.choices[0].delta.tool_calls or []:
                arguments += (call.function and call.function.arguments) or ""
        assert choice.message.content is None or choice.message.content == ""
        if choice.finish_reason == "length":
            (first,) = choice.message.tool_calls or [None]
            told = first.function.arguments if first is not None and first.type == "function" else ""
            assert told == arguments and whole[0].function.arguments.startswith(told)
