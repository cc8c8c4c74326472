"""Reasoning in answers of chats, told apart from what is for the reader."""

from support.tool_chats import CALL, TOOLS, WEATHER, Chat, with_template


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
