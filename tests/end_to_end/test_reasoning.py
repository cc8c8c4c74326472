"""Reasoning with a real model over HTTP: it ends within its budget, and what follows is what was asked for.

The model is a poet whose chat template begins a block of reasoning, which it has never learnt to end.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from penstock.bundled.registry import bundled_models
from support.live_server import RunningServer, serving

MESSAGES: list[Any] = [{"role": "user", "content": "Write a haiku about rain."}]
SCHEMA = {
    "type": "object",
    "properties": {"topic": {"type": "string", "maxLength": 12}, "lines": {"enum": [3, 5]}},
    "required": ["topic", "lines"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TOOLS: Any = [{"type": "function", "function": {"name": "answer", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    source = next(model.directory for model in bundled_models() if model.name == "haiku")
    thinker = tmp_path_factory.mktemp("models") / "thinker"
    shutil.copytree(source, thinker)
    template = thinker / "chat_template.jinja"
    opens = "{% if add_generation_prompt and enable_thinking is not false %}<think>\n{% endif %}"
    template.write_text(template.read_text(encoding="utf-8") + opens, encoding="utf-8")
    with serving(thinker, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer, client_of: Callable[[RunningServer], openai.OpenAI]) -> openai.OpenAI:
    return client_of(server)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    body = {"model": "thinker", "messages": MESSAGES, "temperature": 1, "max_tokens": 300, **fields}
    extra = {name: body.pop(name) for name in ("thinking_token_budget", "chat_template_kwargs") if name in body}
    return client.chat.completions.create(**body, extra_body=extra)


def test_a_schema_behind_reasoning_within_its_budget(client: openai.OpenAI) -> None:
    answer = ask(client, response_format=FORMAT, thinking_token_budget=20, n=8, logprobs=True, seed=1)
    finished = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert len(finished) >= 6
    for choice in finished:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        assert choice.message.reasoning_content
        written = [entry.token for entry in choice.logprobs.content]
        assert "".join(written[:22]).count("</think>") <= 1 and "</think>" in "".join(written[:40])


def test_streams_add_up(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"response_format": FORMAT, "thinking_token_budget": 20, "seed": 3}
    message = ask(client, **fields).choices[0].message
    content = reasoning = ""
    for chunk in ask(client, **fields, stream=True):
        content += chunk.choices[0].delta.content or ""
        reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
    assert (content, reasoning) == (message.content, message.reasoning_content)


def test_calls_behind_reasoning_within_its_budget(client: openai.OpenAI) -> None:
    answer = ask(client, tools=TOOLS, tool_choice="required", thinking_token_budget=20, n=4, seed=1)
    finished = [choice for choice in answer.choices if choice.finish_reason == "tool_calls"]
    assert len(finished) >= 2
    for choice in finished:
        assert choice.message.reasoning_content
        for call in choice.message.tool_calls:
            jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_without_a_grammar_the_answer_is_free(client: openai.OpenAI) -> None:
    choice = ask(client, thinking_token_budget=10, temperature=0, max_tokens=60).choices[0]
    assert choice.message.reasoning_content and "</think>" not in (choice.message.content or "")
    # Without a budget the poet thinks until it believes that it has answered.
    assert ask(client, temperature=0, max_tokens=60).choices[0].message.content is None


def test_reasoning_that_is_not_wanted(client: openai.OpenAI) -> None:
    answer = ask(client, response_format=FORMAT, chat_template_kwargs={"enable_thinking": False}, seed=1, n=4)
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)
            assert not getattr(choice.message, "reasoning_content", None)


def test_anthropics_thinking(server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=server.base, api_key="unused", max_retries=0) as client:
        body: Any = {"model": "thinker", "max_tokens": 1400, "messages": MESSAGES}
        enabled: Any = {"type": "enabled", "budget_tokens": 1024}
        fits: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        with client.messages.stream(**body, thinking=enabled, extra_body={"output_config": fits}) as stream:
            final = stream.get_final_message()
        kinds = [block.type for block in final.content]
        assert kinds == ["thinking", "text"] and final.stop_reason == "end_turn"
        jsonschema.validate(json.loads(final.content[1].text), SCHEMA)  # type: ignore[union-attr]
        assert 1024 < final.usage.output_tokens < 1400
        without = client.messages.create(**body, thinking={"type": "disabled"})
        assert [block.type for block in without.content] == ["text"]
