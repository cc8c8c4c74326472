"""docs/compatibility.md: it is complete, it is what the code says, and what the code says is what requests meet."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock.api.fields import HintField, RefusedField
from penstock.server.app import create_app
from penstock.storage.store import Store
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from scripts import compatibility
from scripts.compatibility import COUNT_TOKENS, INPUT_TOKENS, MESSAGES, PAGE, PLACES, RESPONSES, Place, Row
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.speaking_model import TEMPLATE

HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "f", "description": "Does it.", "parameters": SCHEMA, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}]
MINE = [{"type": "function", **FUNCTION}]
THEIRS = [{"name": "f", "description": "Does it.", "input_schema": SCHEMA, "strict": True}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "x", "name": "f"}
MARK = {"type": "ephemeral", "ttl": "5m"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [HI]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages": {"messages": [HI], "max_tokens": 2000},
    "/v1/messages/count_tokens": {"messages": [HI]},
    "/tokenize": {"messages": [HI]},
}
# A value of each implemented field of a body, with those that it needs beside it.
VALUES: dict[str, dict[str, Any]] = {
    "add_generation_prompt": {"add_generation_prompt": True},
    "add_special_tokens": {"add_special_tokens": False},
    "allowed_token_ids": {"allowed_token_ids": [5, 6]},
    "bad_words": {"bad_words": ["bad"]},
    "best_of": {"best_of": 1},
    "cache_control": {"cache_control": MARK},
    "cache_salt": {"cache_salt": "x"},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "continue_final_message": {
        "continue_final_message": True,
        "messages": [HI, {"role": "assistant", "content": "So"}],
    },
    "dimensions": {"dimensions": 2},
    "early_stopping": {"early_stopping": True, "use_beam_search": True},
    "echo": {"echo": True},
    "encoding_format": {"encoding_format": "base64"},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "guided_choice": {"guided_choice": ["a", "b"]},
    "guided_grammar": {"guided_grammar": 'start: "a"'},
    "guided_json": {"guided_json": SCHEMA},
    "guided_regex": {"guided_regex": "a+"},
    "ignore_eos": {"ignore_eos": True},
    "include_reasoning": {"include_reasoning": False},
    "include_stop_str_in_output": {"include_stop_str_in_output": True, "stop": ["x"]},
    "instructions": {"instructions": "Be kind."},
    "length_penalty": {"length_penalty": 2.0, "use_beam_search": True},
    "logit_bias": {"logit_bias": {"5": 1.0}},
    "max_completion_tokens": {"max_completion_tokens": 5},
    "max_output_tokens": {"max_output_tokens": 5},
    "max_tokens": {"max_tokens": 50},
    "metadata": {"metadata": {"user_id": "me"}},
    "min_p": {"min_p": 0.1},
    "min_tokens": {"min_tokens": 1},
    "model": {"model": "scripted"},
    "n": {"n": 2},
    "output_dtype": {"output_dtype": "int8"},
    "output_config": {"output_config": {"effort": None}},
    "parallel_tool_calls": {"parallel_tool_calls": False, "tools": TOOLS},
    "pooling": {"pooling": "mean"},
    "presence_penalty": {"presence_penalty": 0.5},
    "priority": {"priority": 1},
    "prompt": {"prompt": "hi", "messages": None},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "reasoning": {"reasoning": {"effort": "none"}},
    "reasoning_effort": {"reasoning_effort": "none"},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "response_format": {"response_format": {"type": "json_object"}},
    "return_token_ids": {"return_token_ids": True},
    "return_token_strs": {"return_token_strs": True},
    "seed": {"seed": 7},
    "service_tier": {"service_tier": "flex"},
    "skip_special_tokens": {"skip_special_tokens": False},
    "stop": {"stop": ["x"]},
    "stop_sequences": {"stop_sequences": ["x"]},
    "stop_token_ids": {"stop_token_ids": [5]},
    "store": {"store": True},
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "structured_outputs": {"structured_outputs": {"regex": "a+"}},
    "system": {"system": "Be kind."},
    "temperature": {"temperature": 0.5},
    "text": {"text": {"format": {"type": "json_object"}}},
    "thinking": {"thinking": {"type": "adaptive"}},
    "thinking_token_budget": {"thinking_token_budget": 5},
    "timeout": {"timeout": 600.0},
    "tool_choice": {"tool_choice": "auto", "tools": TOOLS},
    "tools": {"tools": TOOLS},
    "top_k": {"top_k": 5},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "top_p": {"top_p": 0.5},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 5},
    "truncation_side": {"truncate_prompt_tokens": 5, "truncation_side": "left"},
    "use_beam_search": {"use_beam_search": True, "n": 2},
    "user": {"user": "me"},
}
# Where an endpoint has another value for it.
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/chat/completions", "logprobs"): {"logprobs": True},
    ("/v1/completions", "logprobs"): {"logprobs": 2},
    ("/v1/completions", "prompt"): {"prompt": "hi"},
    (RESPONSES, "stream_options"): {"stream": True, "stream_options": {"include_obfuscation": True}},
    **{(path, "tools"): {"tools": MINE} for path in (RESPONSES, INPUT_TOKENS)},
    **{(path, "tool_choice"): {"tool_choice": "auto", "tools": MINE} for path in (RESPONSES, INPUT_TOKENS)},
    **{(path, "parallel_tool_calls"): {"parallel_tool_calls": False} for path in (RESPONSES, INPUT_TOKENS)},
    **{(path, "tools"): {"tools": THEIRS} for path in (MESSAGES, COUNT_TOKENS)},
    **{(path, "tool_choice"): {"tool_choice": {"type": "auto"}, "tools": THEIRS} for path in (MESSAGES, COUNT_TOKENS)},
}


def their_blocks(block: dict[str, Any]) -> dict[str, Any]:
    """A conversation with a block where it may be."""
    use: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    kind = block["type"]
    said = [block, {"type": "text", "text": "x"}] if kind == "thinking" else [block if kind == "tool_use" else use]
    result = block if kind == "tool_result" else {"type": "tool_result", "tool_use_id": use["id"], "content": "x"}
    first = [block] if kind == "text" else "hi"
    asked: list[dict[str, Any]] = [{"role": "user", "content": first}, {"role": "assistant", "content": said}]
    return {
        "messages": [*asked, {"role": "user", "content": "hi" if kind == "thinking" else [result]}],
        "tools": THEIRS,
    }


def their_items(item: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return {"input": [HI, *([call] if item["type"] == "function_call_output" else []), item]}


def own_messages(message: dict[str, Any]) -> dict[str, Any]:
    answer = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
    called = [HI, message, RESULT] if message.get("tool_calls") else [HI, message]
    kinds: dict[str, list[dict[str, Any]]] = {"assistant": called, "tool": [HI, answer, message]}
    return {"messages": kinds.get(message["role"], [message])}


# Of each place inside of bodies: where its object goes, and objects that have all of its implemented fields.
INSIDE: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], list[dict[str, Any]]]] = {
    "messages[].": (
        own_messages,
        [
            {"role": "assistant", "content": "x", "tool_calls": [CALL], "reasoning_content": "Hm.", "name": "me"},
            {"role": "assistant", "content": None, "refusal": "No."},
            RESULT,
        ],
    ),
    "messages[].content[].": (
        lambda part: {"messages": [{"role": "user", "content": [part]}]},
        [{"type": "text", "text": "x"}],
    ),
    "stream_options.": (
        lambda options: {"stream": True, "stream_options": options},
        [{"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}],
    ),
    "tools[].function.": (lambda function: {"tools": [{"type": "function", "function": function}]}, [FUNCTION]),
    "reasoning.": (lambda config: {"reasoning": config}, [{"effort": "none"}]),
    "text.": (lambda config: {"text": config}, [{"format": {"type": "text"}}]),
    "output_config.": (
        lambda config: {"output_config": config},
        [{"effort": None, "format": {"type": "json_schema", "schema": SCHEMA}}],
    ),
    "thinking.": (lambda config: {"thinking": config}, [{"type": "enabled", "budget_tokens": 1024}]),
    "tool_choice.": (
        lambda choice: {"tool_choice": choice, "tools": THEIRS},
        [{"type": "tool", "name": "f", "disable_parallel_tool_use": True}],
    ),
    "metadata.": (lambda metadata: {"metadata": metadata}, [{"user_id": "me"}]),
    "input[message].": (
        their_items,
        [{"type": "message", "role": "assistant", "content": "x", "id": "i", "status": "completed"}],
    ),
    "input[function_call].": (
        their_items,
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "i", "status": "completed"}],
    ),
    "input[function_call_output].": (
        their_items,
        [{"type": "function_call_output", "call_id": "c", "output": "x", "id": "i", "status": "completed"}],
    ),
    "input[reasoning].": (
        their_items,
        [
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "x"}],
                "id": "i",
                "status": "completed",
            }
        ],
    ),
    "messages[].content[text].": (their_blocks, [{"type": "text", "text": "x", "cache_control": MARK}]),
    "messages[].content[thinking].": (their_blocks, [{"type": "thinking", "thinking": "x", "signature": ""}]),
    "messages[].content[tool_use].": (
        their_blocks,
        [{"type": "tool_use", "id": "c", "name": "f", "input": {}, "cache_control": MARK}],
    ),
    "messages[].content[tool_result].": (
        their_blocks,
        [{"type": "tool_result", "tool_use_id": "c", "content": "x", "is_error": False, "cache_control": MARK}],
    ),
}
OWN_TOOLS = (
    lambda tool: {"tools": [tool]},
    [MINE[0], {"type": "namespace", "name": "n", "description": "x", "tools": MINE}],
)
THEIR_TOOLS = (lambda tool: {"tools": [tool]}, [{**THEIRS[0], "cache_control": MARK}])
IN_ITEMS = {"namespace": "n"}


@pytest.fixture(scope="module")
def http(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode("Hello", False), max_model_len=4096)
    with contextlib.closing(Store.open(tmp_path_factory.mktemp("data"))) as store:
        app = create_app(engine, tokenizer, template=ChatTemplate(TEMPLATE), store=store)
        with running(app) as url, httpx.Client(base_url=url, timeout=600) as client:
            yield client


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == compatibility.page(), "run python scripts/compatibility.py"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.endpoints[0]}:{place.path}")
def test_every_field_that_the_packages_know_has_its_rule(place: Place) -> None:
    assert compatibility.unknown(place) == set()


def objects(place: Place, endpoint: str) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], list[dict[str, Any]]]:
    if place.path == "tools[].":
        return OWN_TOOLS if endpoint in (RESPONSES, INPUT_TOKENS) else THEIR_TOOLS
    if (place.path, endpoint) == ("stream_options.", RESPONSES):
        return lambda options: {"stream": True, "stream_options": options}, [{"include_obfuscation": True}]
    return INSIDE[place.path]


def bodies(row: Row, endpoint: str, *value: Any) -> list[dict[str, Any]]:
    """Bodies with the field, which has the value, or where there is none, one that is implemented."""
    base = copy.deepcopy(BODIES[endpoint])
    if not row.place.path:
        given = {row.name: value[0]} if value else OTHERS.get((endpoint, row.name)) or VALUES.get(row.name)
        return [{**base, **(base if given is None else given)}]
    put, known = objects(row.place, endpoint)
    name = "anything" if row.name == "any other" else row.name
    if value:
        return [{**base, **put({**copy.deepcopy(each), name: value[0]})} for each in known]
    having = [each for each in known if name in each] or [{**known[0], name: IN_ITEMS[name]}]
    return [{**base, **copy.deepcopy(put(each))} for each in having]


ROWS = [(row, endpoint) for place in PLACES for endpoint in place.endpoints for row in compatibility.rows(place)]
HINTS = {"store": True, "thread": {"type": "create"}, "include": ["reasoning.encrypted_content"]}


@pytest.mark.parametrize("endpoint", BODIES)
def test_each_cell_is_what_a_request_meets(http: httpx.Client, endpoint: str) -> None:
    checked = [row for row, path in ROWS if path == endpoint]
    assert len(checked) > 10
    for row in checked:
        if row.rule is None:
            for body in bodies(row, endpoint):
                told(http.post(endpoint, json=body), row, [])
        elif isinstance(row.rule, HintField):
            for body in bodies(row, endpoint, HINTS.get(row.name, "a hint")):
                told(http.post(endpoint, json=body), row, [_told_as(row)])
        else:
            check_refusal(http, row, row.rule, endpoint)


def check_refusal(http: httpx.Client, row: Row, rule: RefusedField, endpoint: str) -> None:
    for value in (None, *rule.neutral):
        for body in bodies(row, endpoint, value):
            told(http.post(endpoint, json=body), row, [])
    for body in bodies(row, endpoint, "anything else"):
        answer = http.post(endpoint, json=body)
        assert answer.status_code == 400, (row.name, answer.text)
        message = answer.json()["error"]["message"]
        assert message.partition(":")[0].endswith(row.name) and message.endswith(rule.message), message


def _told_as(row: Row) -> str:
    path = row.place.path
    for kind in ("message", "function_call", "function_call_output", "reasoning"):
        path = path.replace(f"input[{kind}]", "input[]")
    for kind in ("text", "thinking", "tool_use", "tool_result"):
        path = path.replace(f"content[{kind}]", "content[]")
    return path + ("anything" if row.name == "any other" else row.name)


def told(answer: httpx.Response, row: Row, names: list[str]) -> None:
    assert answer.status_code == 200, (row.place.path + row.name, answer.text)
    header = answer.headers.get("x-penstock-ignored")
    assert (header.split(", ") if header else []) == names, (row.place.path + row.name, header)
