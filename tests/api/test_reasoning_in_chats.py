"""Reasoning in answers of chats, told apart from what is for the reader."""

from support.tool_chats import CALL, TOOLS, WEATHER, Chat, grammar, with_template


@with_template("thinking")
def test_reasoning(chat: Chat) -> None:
    chat.says(f"<think>\nHm, weather.\n</think>\n\nSo: {CALL}")
    expected = {"role": "assistant", "content": "So:", "tool_calls": [WEATHER], "finish_reason": "tool_calls"}
    assert chat.message(tools=TOOLS) == expected | {"reasoning_content": "Hm, weather."}
    assert chat.message(tools=TOOLS, include_reasoning=False) == expected
    assert chat.message(include_reasoning=True) == {
        "role": "assistant",
        "content": f"So: {CALL}",
        "reasoning_content": "Hm, weather.",
        "finish_reason": "stop",
    }


@with_template("thinking")
def test_reasoning_that_the_prompt_has_begun(chat: Chat) -> None:
    chat.says("Hm.\n</think>\n\nHello")
    opened = {"chat_template_kwargs": {"think": True}}
    expected = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm.", "finish_reason": "stop"}
    assert chat.message(**opened) == expected
    assert chat.message()["content"] == "Hm.\n</think>\n\nHello"
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>I"}]
    assert chat.message(messages=begun, continue_final_message=True) == expected
    # An output that ends inside of it has no content, and can be sent back.
    message = chat.message(**opened, max_tokens=3)
    assert message["content"] is None and message["reasoning_content"] == "Hm." and message["finish_reason"] == "length"
    message.pop("finish_reason")
    assert chat.ask(messages=[{"role": "user", "content": "hi"}, message]).status_code == 200
    assert "assistant: (Hm.)" in chat.prompt()


HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
HARMONY_CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Zürich"}'


@with_template("harmony")
def test_messages_of_harmony(chat: Chat) -> None:
    chat.says(f"{HARMONY}<|channel|>final<|message|>Hello")
    answer = {"role": "assistant", "content": "Hello", "finish_reason": "stop"}
    assert chat.message() == answer | {"reasoning_content": "Hm."}
    assert chat.message(include_reasoning=False) == answer
    chat.says(f"{HARMONY}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{HARMONY_CALL}<|call|>")
    message = chat.message(tools=TOOLS)
    assert message == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [WEATHER],
        "finish_reason": "tool_calls",
    }
    # It can be sent back, as the template writes it.
    message.pop("finish_reason")
    message["tool_calls"][0]["id"] = "call_1"
    back = {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}
    assert chat.ask(messages=[{"role": "user", "content": "hi"}, message, back], tools=TOOLS).status_code == 200
    assert "<|channel|>analysis<|message|>Hm.<|end|>" in chat.prompt()
    assert 'to=functions.get_weather<|message|>{"city": "Zürich"}<|call|>' in chat.prompt()


@with_template("harmony")
def test_what_harmony_is_held_to(chat: Chat) -> None:
    chat.says(f"{HARMONY}{HARMONY_CALL}")
    asked = grammar(chat, tools=TOOLS, tool_choice="required")
    assert asked is not None and "commentary to=functions.get_weather" in asked
    # A budget ends in an answer, or where a call has to come before its header.
    end, answer = "<|end|><|start|>assistant", "<|channel|>final<|message|>"
    for fields, closing in (({}, end + answer), ({"tools": TOOLS, "tool_choice": "required"}, end)):
        assert chat.ask(thinking_token_budget=10, **fields).status_code == 200
        budget = chat.engine.calls[-1].params.reasoning_budget
        assert budget is not None and (budget.tokens, budget.marks) == (10, "harmony")
        assert chat.tokenizer.decode(list(budget.closing), skip_special=False) == closing
