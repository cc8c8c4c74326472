"""Structured output with a real model over HTTP: every complete answer fits what was asked for."""

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from support.documented import described_client
from support.live_server import RunningServer, serving
from support.random_outputs import unique
from support.schemas import random_schema

MESSAGES = [{"role": "user", "content": "Give me facts about rain as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "topic": {"type": "string", "maxLength": 20},
        "lines": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["topic", "lines"],
    "additionalProperties": False,
}
# Of the answers to random schemas, at temperature 1, from a model that is no more than a poet. Few of them say less.
LEAST_COMPLETE, LEAST_OF_FEW, FEW = 0.95, 0.9, 100


@pytest.fixture(scope="module")
def http(bundled: RunningServer) -> Iterator[httpx.Client]:
    with described_client(bundled.base, 120) as client:
        yield client


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 100, **fields})


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def streamed(http: httpx.Client, **fields: Any) -> tuple[str, str | None]:
    """The text of a streamed chat, and why it ended."""
    text, finish = "", None
    body = {"messages": MESSAGES, "stream": True, **fields}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    return text, finish


def test_random_schemas(http: httpx.Client, pytestconfig: pytest.Config) -> None:
    """At temperature 1, streamed and not, many at a time."""
    count = pytestconfig.getoption("--schemas")

    def ask(seed: int) -> bool:
        schema = random_schema(seed)
        fields = {"response_format": schema_format(schema), "temperature": 1.0, "seed": seed, "max_tokens": 1024}
        if seed % 2:
            text, finish = streamed(http, **fields)
        else:
            answer = chat(http, **fields).json()
            assert "choices" in answer, (answer, schema)
            text, finish = answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]
        if finish == "stop":
            jsonschema.validate(json.loads(text, object_pairs_hook=unique), schema)
        return finish == "stop"

    with ThreadPoolExecutor(16) as threads:
        complete = sum(threads.map(ask, range(count)))
    print(f"{complete} of {count} answers were complete within 1024 tokens, and fit their schemas")
    assert complete >= (LEAST_OF_FEW if count < FEW else LEAST_COMPLETE) * count


def test_the_official_client_parses_an_answer(
    bundled: RunningServer, client_of: Callable[[RunningServer], openai.OpenAI]
) -> None:
    class Answer(BaseModel):
        topic: str = Field(max_length=20)
        lines: int = Field(ge=1, le=9)

    client = client_of(bundled)
    answer = client.chat.completions.parse(
        model="haiku", messages=MESSAGES, response_format=Answer, max_tokens=300, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


def test_expressions_choices_and_grammars(http: httpx.Client) -> None:
    for seed in range(4):
        asked = [
            ({"structured_outputs": {"regex": "[A-Z][a-z]{2,8}, [0-9]{4}"}}, r"[A-Z][a-z]{2,8}, [0-9]{4}"),
            ({"guided_choice": ["yes", "no", "maybe"]}, "yes|no|maybe"),
            ({"guided_grammar": 'root ::= ("rain" | "snow") ", " [a-z]{1,12} "."'}, r"(rain|snow), [a-z]{1,12}\."),
            ({"guided_grammar": 'start: WORD (" " WORD){2}\nWORD: /[a-z]{1,6}/'}, r"[a-z]{1,6}( [a-z]{1,6}){2}"),
        ]
        for fields, expression in asked:
            choice = chat(http, **fields, seed=seed).json()["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert re.fullmatch(expression, choice["message"]["content"])


def test_constrained_rows_do_not_change_the_others(http: httpx.Client) -> None:
    """Tokens and log probabilities are the same alone and among others, constrained or not."""
    free = {"seed": 5, "logprobs": True, "top_logprobs": 3, "max_tokens": 40}
    bound = {**free, "response_format": schema_format(SCHEMA), "frequency_penalty": 0.5, "n": 2}
    alone = [chat(http, **fields).json()["choices"] for fields in (free, bound)]
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda fields: chat(http, **fields).json()["choices"], [free, bound] * 6))
    assert answers == alone * 6
    for choice in alone[1]:
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_answers_survive_preemption(http: httpx.Client) -> None:
    """A pool that holds two of eight answers: sequences lose their blocks and go on where they were.

    They are of one request, so that they begin in one step however slow the machine is.
    """
    fields = {"response_format": schema_format(random_schema(11)), "temperature": 1.0, "max_tokens": 200, "n": 8}
    options = ("--threads", "2", "--kv-cache-memory", "2MB", "--max-model-len", "320")
    with serving(None, *options) as small, described_client(small.base, 120) as tight:
        found = chat(tight, **fields, seed=3).json()["choices"]
        preempted = small.metric("penstock_preemptions_total")
    assert found == chat(http, **fields, seed=3).json()["choices"]
    assert preempted > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": schema_format({"not": {}})}, "not"),
        ({"response_format": schema_format({"type": "array", "uniqueItems": True})}, "uniqueItems"),
        ({"guided_regex": "(?=a)"}, "look"),
        ({"guided_grammar": "start: missing"}, "missing"),
    ],
)
def test_what_cannot_be_compiled_is_refused(http: httpx.Client, fields: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        answer = chat(http, stream=stream, **fields)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert words in error["message"]
        assert error["param"] in ("response_format.json_schema.schema", *fields)


def test_a_grammar_that_comes_to_nothing_is_the_requests_fault(http: httpx.Client) -> None:
    """Not the server's, and told in one sentence, before the answer or in the midst of it."""
    fields = {"guided_grammar": 'start: "a" B\nB: /b/ & /c/'}
    answer = chat(http, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "nothing_fits")
    assert error["message"] == "guided_grammar: nothing that fits can follow this output; ask for something simpler."
    streamed = chat(http, stream=True, **fields)
    if streamed.status_code == 400:
        # It was known before there was anything to send.
        assert streamed.json()["error"] == error
        return
    *_, failed, done = streamed.text.strip().split("\n\n")
    assert json.loads(failed.removeprefix("data: "))["error"] == error and done == "data: [DONE]"


def test_compiling_does_not_hold_up_others(http: httpx.Client) -> None:
    """While hostile grammars are compiled, a stream goes on."""
    hostile = [{"guided_regex": "|".join(f"{i}.*{i}{j}" for i in range(2000))} for j in range(6)]
    with ThreadPoolExecutor(7) as threads:
        answers = [threads.submit(chat, http, max_tokens=1, **fields) for fields in hostile]
        begun = time.monotonic()
        text, finish = streamed(http, max_tokens=60, ignore_eos=True, temperature=0)
        seconds = time.monotonic() - begun
        statuses = [answer.result().status_code for answer in answers]
    assert set(statuses) <= {200, 400}
    assert finish == "length"
    assert text
    print(f"60 tokens took {seconds:.2f} s while {len(hostile)} grammars were compiled")
