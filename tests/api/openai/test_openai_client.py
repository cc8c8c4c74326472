"""OpenAI's own client against the server."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

REPLY = "Hello, wörld 👩‍🚀!"


@pytest.fixture
def client(served: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted", "alias"]
    assert client.models.retrieve("alias").owned_by == "penstock"


def test_completion(client: OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt="the fox", max_tokens=100)
    assert answer.choices[0].text == REPLY
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.total_tokens == (
        answer.usage.prompt_tokens + answer.usage.completion_tokens
    )


def test_completion_streamed(client: OpenAI) -> None:
    chunks = list(client.completions.create(model="alias", prompt="the fox", max_tokens=100, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == REPLY
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2
    )
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", REPLY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert bytes(byte for token in logprobs.content for byte in token.bytes or []).decode() == REPLY
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_chat_streamed_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    *parts, last = chunks
    assert "".join(part.choices[0].delta.content or "" for part in parts) == REPLY
    assert parts[0].choices[0].delta.role == "assistant"
    assert all(part.usage is None for part in parts)
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens > 10


def test_an_answer_can_be_sent_back(client: OpenAI, served: Any) -> None:
    first = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
    client.chat.completions.create(
        model="scripted",
        messages=[
            {"role": "user", "content": "hi"},
            first.choices[0].message,  # type: ignore[list-item]
            {"role": "user", "content": "more"},
        ],
    )
    assert REPLY in served.tokenizer.decode(served.engine.calls[-1].prompt)


def test_errors_are_the_clients_own(client: OpenAI, served: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.completions.create(model="scripted", prompt="x", temperature=-1)
    assert bad.value.param == "temperature" and bad.value.code == "invalid_parameter"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="another", prompt="x")
    served.engine.unavailable = "The engine is starting."
    with pytest.raises(openai.InternalServerError, match="starting"):
        client.completions.create(model="scripted", prompt="x")


def test_an_error_in_the_middle_of_a_stream(client: OpenAI, served: Any) -> None:
    served.engine.finish, served.engine.error = "error", "The logits are not numbers."
    stream = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}], stream=True)
    with pytest.raises(openai.APIError, match="logits are not numbers"):
        for _ in stream:
            pass
