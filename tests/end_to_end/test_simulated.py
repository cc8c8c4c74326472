"""`penstock serve --simulate`: the whole API, with made-up tokens."""

import json
from collections.abc import Callable, Iterator

import openai
import pytest

from support.live_server import RunningServer, serving

MESSAGES = [{"role": "user", "content": "What is a penstock?"}]


@pytest.fixture(scope="module")
def simulated() -> Iterator[RunningServer]:
    with serving(None, "--simulate", "8x h100", "--simulate-output-len", "30") as running:
        yield running


@pytest.fixture(scope="module")
def client(simulated: RunningServer, client_of: Callable[[RunningServer], openai.OpenAI]) -> openai.OpenAI:
    return client_of(simulated)


def test_it_says_that_it_is_simulated(simulated: RunningServer) -> None:
    assert json.loads(simulated.get("/version"))["simulated"] == "8 x H100 SXM"
    assert json.loads(simulated.get("/v1/stats"))["settings"]["simulated"] == "8 x H100 SXM"
    assert simulated.metric("penstock_simulated") == 1


def test_answers_are_words_and_streams_are_streams(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="haiku", messages=MESSAGES)  # type: ignore[arg-type]
    text = answer.choices[0].message.content or ""
    assert answer.choices[0].finish_reason == "stop" and answer.usage is not None
    assert all(word.isalpha() for word in text.split())
    stream = client.chat.completions.create(model="haiku", messages=MESSAGES, max_tokens=12, stream=True)  # type: ignore[call-overload]
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in stream) >= 1


def test_what_is_asked_of_answers_holds(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "open": {"type": "boolean"},
            "gate": {"enum": ["left", "right"]},
            "name": {"type": "string"},
            "width": {"type": "integer"},
        },
        "required": ["open", "gate", "name", "width"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="haiku",
        messages=MESSAGES,  # type: ignore[arg-type]
        temperature=1.0,
        logprobs=True,
        top_logprobs=2,
        response_format={"type": "json_schema", "json_schema": {"name": "gate", "schema": schema}},
    )
    found = json.loads(answer.choices[0].message.content or "")
    assert isinstance(found["open"], bool) and found["gate"] in ("left", "right")
    assert isinstance(found["name"], str) and isinstance(found["width"], int)
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content
    stopped = client.completions.create(model="haiku", prompt="A", max_tokens=400, stop=[" "], temperature=0)
    assert " " not in stopped.choices[0].text


def test_texts_have_vectors(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="haiku", input=["one", "two"])
    assert len(found.data) == 2 and len(found.data[0].embedding) == len(found.data[1].embedding) > 0
