"""Anthropic's own client against the server."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from support.listed_parser import ListedParser

REPLY = "Hello, wörld 👩‍🚀!"
ASKED: Any = {"model": "scripted", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(served: Any) -> Iterator[Anthropic]:
    with Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message(client: Anthropic, served: Any) -> None:
    message = client.messages.create(**ASKED, system="be", metadata={"user_id": "me"}, extra_body={"temperature": 0.5})
    (block,) = message.content
    assert block.type == "text" and block.text == REPLY
    assert (message.role, message.stop_reason, message.model) == ("assistant", "end_turn", "scripted")
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(served.engine.calls[0].prompt)
    assert usage.output_tokens == len(served.engine.reply)


def test_a_streamed_message(client: Anthropic) -> None:
    with client.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == REPLY
        message = stream.get_final_message()
    (block,) = message.content
    assert block.type == "text" and block.text == REPLY
    assert message.stop_reason == "end_turn" and message.usage.output_tokens > 10


def test_the_events_of_a_stream(client: Anthropic) -> None:
    kinds = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_and_calls(client: Anthropic, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.text.output_format.PlainParser", ListedParser)
    message: Any
    if stream:
        with client.messages.stream(**ASKED) as running:
            message = running.get_final_message()
    else:
        message = client.messages.create(**ASKED)
    thinking, text, first, second = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Let me see.")
    assert (text.type, text.text) == ("text", "I look.")
    assert (first.type, first.name, first.input) == ("tool_use", "weather", {"city": "Rome"})
    assert (second.name, second.input) == ("time", {})
    assert message.stop_reason == "tool_use"


def test_an_answer_can_be_sent_back(client: Anthropic, served: Any) -> None:
    message = client.messages.create(**ASKED)
    turns: Any = [*ASKED["messages"], {"role": "assistant", "content": message.content}, ASKED["messages"][0]]
    client.messages.create(**{**ASKED, "messages": turns})
    assert REPLY in served.tokenizer.decode(served.engine.calls[-1].prompt)


def test_tokens_are_counted(client: Anthropic, served: Any) -> None:
    client.messages.create(**ASKED)
    counted = client.messages.count_tokens(model="scripted", messages=ASKED["messages"])
    assert counted.input_tokens == len(served.engine.calls[0].prompt)


def test_errors_are_the_clients_own(client: Anthropic, served: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**ASKED, extra_body={"temperature": -1})
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(**{**ASKED, "model": "another"})
    served.engine.unavailable = "The engine is starting."
    with pytest.raises(anthropic.InternalServerError, match="starting") as overloaded:
        client.messages.create(**ASKED)
    assert overloaded.value.status_code == 529


def test_an_error_in_the_middle_of_a_stream(client: Anthropic, served: Any) -> None:
    served.engine.finish, served.engine.error = "error", "The logits are not numbers."
    with pytest.raises(anthropic.APIStatusError, match="logits are not numbers"):
        for _ in client.messages.create(**ASKED, stream=True):
            pass
