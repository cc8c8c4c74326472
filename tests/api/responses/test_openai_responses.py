"""OpenAI's own client against `/v1/responses`."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from support.listed_parser import ListedParser

REPLY = "Hello, wörld 👩‍🚀!"


@pytest.fixture
def client(served: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response(client: OpenAI, served: Any) -> None:
    response = client.responses.create(model="scripted", input="hi", instructions="be", metadata={"a": "b"})
    assert (response.output_text, response.status, response.metadata) == (REPLY, "completed", {"a": "b"})
    assert response.usage is not None and response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.total_tokens == len(served.engine.calls[0].prompt) + len(served.engine.reply)


def test_a_stream(client: OpenAI) -> None:
    with client.responses.stream(model="scripted", input="hi") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == REPLY


def test_a_stream_that_is_cut_off(client: OpenAI) -> None:
    events = list(client.responses.create(model="scripted", input="hi", max_output_tokens=3, stream=True))
    last = events[-1]
    assert last.type == "response.incomplete" and last.response.output_text == "Hel"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_and_calls(client: OpenAI, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.text.output_format.PlainParser", ListedParser)
    response: Any
    if stream:
        with client.responses.stream(model="scripted", input="hi") as running:
            response = running.get_final_response()
    else:
        response = client.responses.create(model="scripted", input="hi")
    reasoning, message, weather, time = response.output
    assert reasoning.content[0].text == "Let me see." and message.content[0].text == "I look."
    assert (weather.name, weather.arguments, time.arguments) == ("weather", '{"city": "Rome"}', "{}")
    monkeypatch.undo()
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "1"} for call in (weather, time)
    ]
    again = client.responses.create(model="scripted", input=results, previous_response_id=response.id)
    assert again.output_text == REPLY


def test_outputs_can_be_sent_back(client: OpenAI, served: Any) -> None:
    first = client.responses.create(model="scripted", input="hi", store=False)
    items: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "more"}]
    client.responses.create(model="scripted", input=items)
    assert REPLY in served.tokenizer.decode(served.engine.calls[-1].prompt)


def test_stored_responses(client: OpenAI, served: Any) -> None:
    first = client.responses.create(model="scripted", input="hi")
    second = client.responses.create(model="scripted", input="more", previous_response_id=first.id)
    assert client.responses.retrieve(second.id) == second
    (item,) = client.responses.input_items.list(second.id)
    assert item.type == "message" and item.content[0].text == "more"  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="ended"):
        client.responses.cancel(second.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="not stored any more") as gone:
        client.responses.create(model="scripted", input="x", previous_response_id=second.id)
    assert gone.value.code == "previous_response_not_found"


def test_errors_are_the_clients_own(client: OpenAI, served: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="background") as bad:
        client.responses.create(model="scripted", input="x", background=True)
    assert bad.value.param == "background"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.responses.create(model="another", input="x")


def test_a_failure_in_the_middle_of_a_stream(client: OpenAI, served: Any) -> None:
    served.engine.finish, served.engine.error = "error", "The logits are not numbers."
    *_, last = client.responses.create(model="scripted", input="x", stream=True)
    assert last.type == "response.failed" and last.response.error is not None
    assert "logits" in last.response.error.message
