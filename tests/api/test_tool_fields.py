"""What a request may offer as tools and say of them: refusals name the field."""

from typing import Any

import pytest

from support.tool_chats import TOOLS, Chat, refused, tool


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "code"}]}, "tools[0].function"),
        ({"tools": [{"type": "code", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [tool(), tool("")]}, "tools[1].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("a" * 129)]}, "tools[0].function.name"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name"),
        ({"tools": [tool(f"f{index}") for index in range(129)]}, "tools"),
        ({"tools": [tool(more=1)]}, "tools[0].function.more"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool(parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
        ({"tools": [tool(parameters={"required": "x"})]}, "tools[0].function.parameters.required"),
        ({"tools": [tool(parameters=deep(33))]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters=deep(33))], "tool_choice": "none"}, "tools[0].function.parameters"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": tool("other")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "code", "function": {"name": "now"}}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"include_reasoning": "no"}, "include_reasoning"),
    ],
)
def test_refusals_name_the_field(chat: Chat, fields: dict[str, Any], param: str) -> None:
    assert refused(chat, **fields)[0] == param


def test_deprecated_fields_say_what_to_use(chat: Chat) -> None:
    assert "use tools" in refused(chat, functions=[{"name": "f"}])[1]
    assert "use tool_choice" in refused(chat, function_call={"name": "f"})[1]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "tool_call_id"),
        (
            {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            "tool_calls",
        ),
        ({"role": "user", "content": "x", "reasoning_content": "y"}, "reasoning_content"),
        ({"role": "user", "reasoning_content": ""}, "content"),
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "tool_calls": []}, "content"),
    ],
)
def test_messages_have_what_their_roles_need(chat: Chat, message: dict[str, Any], param: str) -> None:
    assert refused(chat, messages=[message])[0] == f"messages[0].{param}"


@pytest.mark.parametrize(
    ("chat", "why"), [("no tools", "the chat template takes no tools"), ("unknown", "known formats")], indirect=["chat"]
)
def test_a_model_that_cannot_call_tools_says_why(chat: Chat, why: str) -> None:
    param, message = refused(chat, tools=TOOLS)
    assert param == "tools" and why in message
    assert chat.ask(tools=TOOLS, tool_choice="none").status_code == 200
