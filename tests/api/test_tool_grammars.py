"""What calls, reasoning and answers are held to while they are written."""

from typing import Any

import pytest

from support.tool_chats import CITY, TOOLS, Chat, asked_grammar, grammar, refused, tool, with_template


def thought(chat: Chat, **fields: Any) -> str:
    """What may come before an output that is held to a grammar."""
    asked = asked_grammar(chat, **fields)
    assert asked is not None
    return asked.thought


def test_a_call_that_is_repeated_for_ever_comes_to_an_end(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is enforced; the answer ends as others do that call tools."""
    monkeypatch.setattr("penstock.api.tools.MAX_CALLS", 2)
    chat.says('<tool_call>{"name": "f"}</tool_call>' * 4)
    message = chat.message(tools=[tool("f", parameters={})])
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert message["finish_reason"] == "tool_calls"
    assert message["tool_calls"] == [call, call] and message["content"] is None


def test_calls_that_must_be_made_are_enforced(chat: Chat) -> None:
    assert grammar(chat, tools=TOOLS) is None
    every = grammar(chat, tools=TOOLS, tool_choice="required") or ""
    named = grammar(chat, tools=TOOLS, tool_choice=tool("now")) or ""
    assert "get_weather" in every and '\\"now\\"' in every and "{0,63}" in every
    assert "get_weather" not in named and '\\"now\\"' in named and "{0,63}" not in named
    assert "{0,63}" not in (grammar(chat, tools=TOOLS, tool_choice="required", parallel_tool_calls=False) or "{0,63}")
    # The model is told of all tools, so that prompts have the same beginning.
    assert "get_weather" in chat.prompt()
    strict = grammar(chat, tools=[tool(parameters=CITY, strict=True)]) or ""
    assert "TEXT" in strict and '"lenient": false' in strict


JSON = {"response_format": {"type": "json_object"}}


@with_template("thinking")
@pytest.mark.parametrize("fields", [{"tools": TOOLS, "tool_choice": "required"}, JSON, {"guided_regex": "a+"}])
def test_reasoning_comes_before_what_is_held_to_a_grammar(chat: Chat, fields: dict[str, Any]) -> None:
    assert '("<think>" ' in thought(chat, **fields)
    opened = thought(chat, **fields, chat_template_kwargs={"think": True})
    assert "thought: closed BREAK?" in opened and '"<think>"' not in opened
    # Where there can be no more of it, the answer begins at once.
    assert thought(chat, **fields, chat_template_kwargs={"think": False}) == ""
    assert thought(chat, **fields, chat_template_kwargs={"enable_thinking": False}) == ""
    for begun, rules in (("<think>I", opened), ("<think>I</think>", ""), ("{", ""), ("", thought(chat, **fields))):
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}]
        assert thought(chat, **fields, messages=messages, continue_final_message=True) == rules


@with_template("mistral")
def test_marks_in_grammars_are_the_tokens_that_they_are(chat: Chat) -> None:
    text = grammar(chat, tools=TOOLS, tool_choice="required") or ""
    assert f"<[{chat.tokenizer.token_id('[TOOL_CALLS]')}]>" in text and "TOOL_CALLS" not in text


def test_tools_and_an_answer_in_json(chat: Chat) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert "otherwise: %json" in (grammar(chat, tools=TOOLS, response_format=wanted) or "")
    assert "otherwise" not in (
        grammar(chat, tools=TOOLS, response_format=wanted, tool_choice="required") or "otherwise"
    )
    chat.engine.calls.clear()
    param, message = refused(chat, tools=TOOLS, guided_regex="a+")
    assert param == "guided_regex" and "tools" in message


def test_a_model_that_does_not_reason_answers_at_once(chat: Chat) -> None:
    assert thought(chat, **JSON) == "" == thought(chat, tools=TOOLS, tool_choice="required")


@with_template("thinking")
def test_reasoning_and_an_answer_that_is_held_to_a_grammar(chat: Chat) -> None:
    chat.says('<think>\nHm.\n</think>\n\n{"a": 1}')
    expected = {"role": "assistant", "content": '{"a": 1}', "finish_reason": "stop"}
    assert chat.message(**JSON) == expected | {"reasoning_content": "Hm."}
    assert chat.message(**JSON, include_reasoning=False) == expected
    choices = chat.ask(**JSON, n=2, logprobs=True).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ['{"a": 1}'] * 2
    entries = choices[1]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode().startswith("<think>")
    chat.says('Hm.</think>{"a": 1}')
    opened = {"chat_template_kwargs": {"think": True}}
    assert chat.message(**JSON, **opened) == expected | {"reasoning_content": "Hm."}
    # An answer that begins at once may look like reasoning.
    chat.says("<think>")
    choice = {"guided_choice": ["<think>", "no"], "chat_template_kwargs": {"think": False}}
    assert chat.message(**choice)["content"] == "<think>"
