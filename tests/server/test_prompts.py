"""A gateway reads the prompts that a replica computes, and leaves what it cannot know."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from penstock.api.policies import FieldPolicies
from penstock.api.reading import Reading
from penstock.bundled.registry import find_bundled
from penstock.loading.tokenizers import tokenizer_in
from penstock.server.app import create_app
from penstock.server.prompts import PromptReader
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE

WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object", "properties": {}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Write a haiku about rain."},
]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": CHAT, "cache_salt": "mine"}),
    ("/v1/chat/completions", {"messages": CHAT, "response_format": {"type": "json_object"}, "logprobs": True}),
    ("/v1/completions", {"prompt": "The rain " * 4000}),
    ("/v1/completions", {"prompt": [5, 6, 7], "n": 2}),
    ("/v1/messages", {"messages": CHAT[1:], "system": "Be brief.", "max_tokens": 5, "tools": [WEATHER]}),
    ("/v1/responses", {"input": "Write a haiku.", "instructions": "Be brief."}),
    ("/v1/embeddings", {"input": ["The rain", "The snow"]}),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    bundled = find_bundled("haiku")
    assert bundled is not None
    found = tokenizer_in(bundled.directory, 100_000)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer.table, [5, 6], aliases=("another",), max_model_len=10_000, vocab_size=100_000)


@pytest.fixture(scope="module")
def reader(tokenizer: Tokenizer, engine: ScriptedEngine) -> PromptReader:
    reading = Reading(tokenizer, policies=FieldPolicies(unknown_fields="tell"))
    return PromptReader(reading, msgspec.structs.replace(engine.model, name="elsewhere", aliases=()), "same")


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_prompts_are_those_of_the_replica(
    path: str, body: dict[str, Any], tokenizer: Tokenizer, engine: ScriptedEngine, reader: PromptReader
) -> None:
    content = msgspec.json.encode({"model": "another", **body})
    engine.calls.clear()
    with running(create_app(engine, tokenizer)) as url:
        answer = httpx.post(url + path, content=content, headers={"content-type": "application/json"}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    read = asyncio.run(reader.read(path, content, ("scripted", "another")))
    assert read is not None and (read.tokens, read.salt) == (engine.calls[0].prompt, body.get("cache_salt", ""))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "And then?", "previous_response_id": "resp_1"}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"messages": CHAT, "model": "nothing such"}),
        ("/v1/completions", {"prompt": 5}),
        ("/v1/messages/count_tokens", {"messages": CHAT[1:]}),
    ],
)
def test_what_only_the_replica_can_say(path: str, body: dict[str, Any], reader: PromptReader) -> None:
    content = msgspec.json.encode({"model": "another", **body})
    assert asyncio.run(reader.read(path, content, ("scripted", "another"))) is None
