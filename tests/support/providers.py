"""Hosted APIs over real sockets, as OpenAI's and Anthropic's are, that answer as a test says."""

import contextlib
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from penstock.providers.options import ProviderModel, ProviderOptions
from support.scripted_http import Received, Script, ScriptedServer, Step, scripted, stream, usage_chunk

KEY = "sk-of-the-gateway"
VARIABLE = "PENSTOCK_TEST_PROVIDER_KEY"


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    """A chunk of a chat."""
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def says(*words: str, prompt: int = 7, cached: int = 2, finish: str = "stop") -> Script:
    """OpenAI's API: an answer of these words, one token each."""
    chunks = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": word}) for word in words)]
    return lambda _request: stream(*chunks, chunk({}, finish), usage_chunk(prompt, len(words), cached), "[DONE]")


def event(kind: str, **fields: Any) -> bytes:
    """An event of Anthropic's."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def message(*blocks: tuple[dict[str, Any], list[dict[str, Any]]], stop: str = "end_turn", output: int = 5) -> Script:
    """Anthropic's API: an answer of blocks, each with its deltas."""

    def script(_request: Received) -> list[Step]:
        usage = {"input_tokens": 4, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0, "output_tokens": 1}
        events = [event("message_start", message={"usage": usage}), event("ping")]
        for index, (block, deltas) in enumerate(blocks):
            events.append(event("content_block_start", index=index, content_block=block))
            events += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
            events.append(event("content_block_stop", index=index))
        delta = {"stop_reason": stop, "stop_sequence": None}
        events += [event("message_delta", delta=delta, usage={"output_tokens": output}), event("message_stop")]
        return stream(*events)

    return script


def text_block(*texts: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block of text."""
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in texts]


def tool_block(name: str, *parts: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A call of a tool."""
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    return block, [{"type": "input_json_delta", "partial_json": part} for part in parts]


@contextlib.contextmanager
def provider(
    monkeypatch: pytest.MonkeyPatch,
    script: Script,
    *,
    name: str = "hosted",
    model: str = "scripted",
    at: str = "their-name",
    root: str = "/v1",
    **options: Any,
) -> Iterator[tuple[ProviderOptions, ScriptedServer]]:
    """One that listens, and what the operator says of it."""
    monkeypatch.setenv(VARIABLE, KEY)
    prices = {"input": Decimal(2), "cached": Decimal(1), "output": Decimal(10)}
    with scripted(script) as server:
        offered = ProviderModel(model=model, at=at, **prices)
        fields = {"api": "openai", "after": 0.0, **options}
        if fields["api"] == "openai":
            fields = {"max_tokens_field": "max_completion_tokens", **fields}
        yield (
            ProviderOptions(name=name, key_variable=VARIABLE, url=server.base + root, model=(offered,), **fields),
            server,
        )
