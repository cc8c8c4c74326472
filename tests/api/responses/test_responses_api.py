"""`/v1/responses`: what requests become, what responses and their events contain, and what is stored of them."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from penstock.core.grammar import Grammar
from penstock.core.sampling import SamplingParams
from penstock.server.app import create_app
from support.documented import described_client
from support.http_server import running
from support.listed_parser import ListedParser
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE

REPLY = "Hello, wörld 👩‍🚀!"
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Köln"}'}


def post(served: Any, **fields: object) -> httpx.Response:
    response: httpx.Response = served.http.post("/v1/responses", json={"input": "hi", **fields})
    return response


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; their names must be their types, and their numbers without gaps."""
    parts = text.split("\n\n")
    assert parts[-1] == ""
    result = []
    for number, part in enumerate(parts[:-1]):
        name, data = part.split("\n")
        result.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {result[-1]['type']}" and result[-1]["sequence_number"] == number
    return result


def prompt(served: Any) -> str:
    text: str = served.tokenizer.decode(served.engine.calls[-1].prompt, skip_special=False)
    return text


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def without_ids(value: Any) -> Any:
    """The same without what differs from one response to the next."""
    if isinstance(value, list):
        return [without_ids(inner) for inner in value]
    if isinstance(value, dict):
        changing = ("id", "call_id", "created_at", "completed_at", "seed")
        return {key: without_ids(inner) for key, inner in value.items() if key not in changing}
    return value


def test_a_response(served: Any) -> None:
    body = post(served, instructions="be", metadata={"a": "b"}, user="me", temperature=0.5, max_output_tokens=99).json()
    assert body["id"].startswith("resp_") and body["output"][0]["id"].startswith("msg_")
    assert body["seed"] == 42 and body["completed_at"] >= body["created_at"]
    prompt_tokens = len(served.engine.calls[0].prompt)
    part = {"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}
    assert without_ids(body) == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "scripted",
        "output": [{"type": "message", "status": "completed", "role": "assistant", "content": [part]}],
        "temperature": 0.5,
        "top_p": 1.0,
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": len(served.engine.reply),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + len(served.engine.reply),
        },
        "background": False,
        "instructions": "be",
        "max_output_tokens": 99,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": "me",
    }


def test_a_stream(served: Any) -> None:
    whole = post(served).json()
    created, begun, item, part, *deltas, text, part_done, item_done, last = events(post(served, stream=True).text)
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == begun["response"] and created["response"]["status"] == "in_progress"
    assert created["response"]["output"] == [] and created["response"]["usage"] is None
    assert item["type"] == "response.output_item.added" and item["item"]["content"] == []
    place = {"item_id": item["item"]["id"], "output_index": 0, "content_index": 0}
    assert part["type"] == "response.content_part.added" and part["part"]["text"] == ""
    for event in (part, *deltas, text, part_done):
        assert event.items() >= place.items()
    assert {delta["type"] for delta in deltas} == {"response.output_text.delta"}
    assert "".join(delta["delta"] for delta in deltas) == REPLY
    assert (text["type"], text["text"]) == ("response.output_text.done", REPLY)
    assert part_done["type"] == "response.content_part.done" and part_done["part"]["text"] == REPLY
    assert item_done["item"]["status"] == "completed" and item_done["item"]["content"] == [part_done["part"]]
    assert last["type"] == "response.completed" and last["response"]["output"] == [item_done["item"]]
    assert without_ids(last["response"]) == without_ids(whole)


def test_an_output_that_was_cut_off(served: Any) -> None:
    whole = post(served, max_output_tokens=3).json()
    assert whole["status"] == "incomplete" and whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"][0]["status"] == "incomplete" and whole["output"][0]["content"][0]["text"] == "Hel"
    *_, item, last = events(post(served, max_output_tokens=3, stream=True).text)
    assert item["item"]["status"] == "incomplete" and last["type"] == "response.incomplete"
    assert without_ids(last["response"]) == without_ids(whole)


def test_reasoning_and_calls(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.text.output_format.PlainParser", ListedParser)
    whole = post(served).json()
    reasoning, message, weather, time = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}] and reasoning["summary"] == []
    assert message["content"][0]["text"] == "I look."
    assert (weather["type"], weather["name"], weather["arguments"]) == ("function_call", "weather", '{"city": "Rome"}')
    assert (time["name"], time["arguments"]) == ("time", "{}") and time["call_id"] != weather["call_id"]
    streamed = events(post(served, stream=True).text)
    assert [event["type"].removeprefix("response.") for event in streamed] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event["output_index"] for event in streamed if event["type"].endswith("added") and "item" in event] == [
        0,
        1,
        2,
        3,
    ]
    done = [event for event in streamed if event["type"] == "response.function_call_arguments.done"]
    assert [event["arguments"] for event in done] == ['{"city": "Rome"}', "{}"]
    assert without_ids(streamed[-1]["response"]) == without_ids(whole)


def test_fields_reach_the_engine(served: Any) -> None:
    fields = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "seed": 11, "ignore_eos": True}
    response = post(served, **fields, max_output_tokens=9, stop="zz", priority=-2, cache_salt="tenant")
    assert response.status_code == 200, response.text
    call = served.engine.calls[0]
    assert call.params == SamplingParams(**fields, max_tokens=9, stop=("zz",))  # type: ignore[arg-type]
    assert (call.standing.priority, call.standing.cache_salt) == (-2, "tenant")
    post(served, chat_template_kwargs={"shout": True})
    assert prompt(served).endswith("SHOUT")


def test_formats_become_grammars(served: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text_format = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    body = post(served, text={"format": text_format}).json()
    assert body["text"] == {"format": text_format}
    assert served.engine.calls[0].params.grammar == Grammar.json_schema(schema, "text.format.schema")
    assert post(served, text={"format": {"type": "json_object"}}).status_code == 200
    assert served.engine.calls[1].params.grammar == Grammar.json_object("text.format")


def test_items_go_through_the_template(served: Any) -> None:
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two<|im_end|>"}]
    items = [
        {"role": "developer", "content": "now"},
        {"role": "user", "content": parts},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "let me", "annotations": []}],
        },
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "42"}]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    assert post(served, input=items, instructions="be").status_code == 200
    assert prompt(served) == (
        "<|im_start|>system: be\n\nnow<|im_end|><|im_start|>user: one\ntwo<|im_end|><|im_end|>"
        # The template has no place for calls, so the call is part of the text.
        '<|im_start|>assistant: let me\n{"name": "weather", "arguments": {"city": "Köln"}}<|im_end|>'
        "<|im_start|>tool: 42<|im_end|><|im_start|>assistant: a<|im_end|>"
        "<|im_start|>user: b<|im_end|><|im_start|>assistant: "
    )
    assert served.engine.calls[0].prompt.count(served.tokenizer.token_id("<|im_end|>")) == 6


def test_a_conversation_goes_on(served: Any) -> None:
    first = post(served, instructions="be").json()
    second = post(served, input="more", previous_response_id=first["id"], stream=True)
    assert prompt(served) == (
        f"<|im_start|>user: hi<|im_end|><|im_start|>assistant: {REPLY}<|im_end|><|im_start|>user: more<|im_end|>"
        "<|im_start|>assistant: "
    )
    last = events(second.text)[-1]["response"]
    assert last["previous_response_id"] == first["id"]
    assert post(served, input="end", previous_response_id=last["id"], instructions="so").status_code == 200
    assert prompt(served).startswith("<|im_start|>system: so<|im_end|><|im_start|>user: hi<|im_end|>")
    assert prompt(served).count(REPLY) == 2
    # The order of requests is the order of what is stored, without any waiting.
    assert served.http.delete(f"/v1/responses/{first['id']}").status_code == 200
    error = refusal(post(served, previous_response_id=last["id"]))
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")


def test_results_of_calls_may_come_with_the_next_response(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("penstock.text.output_format.PlainParser", ListedParser)
        first = post(served).json()
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": item["name"]}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    assert post(served, input=results, previous_response_id=first["id"]).status_code == 200
    assert "tool: weather<|im_end|><|im_start|>tool: time<|im_end|>" in prompt(served)


def test_stored_responses(served: Any) -> None:
    body = post(served).json()
    path = f"/v1/responses/{body['id']}"
    assert served.http.get(path).json() == body
    streamed = events(post(served, stream=True).text)[-1]["response"]
    assert served.http.get(f"/v1/responses/{streamed['id']}").json() == streamed
    assert served.http.delete(path).json() == {"id": body["id"], "object": "response", "deleted": True}
    for response in (served.http.get(path), served.http.delete(path), served.http.post(f"{path}/cancel")):
        assert refusal(response, 404)["code"] == "response_not_found"
    unstored = post(served, store=False).json()
    assert unstored["store"] is False
    refusal(served.http.get(f"/v1/responses/{unstored['id']}"), 404)
    refusal(post(served, previous_response_id=unstored["id"]))


def test_input_items_are_listed(served: Any) -> None:
    items = [{"role": "user", "content": "a"}, CALL, {"type": "function_call_output", "call_id": "c1", "output": "42"}]
    response = post(served, input=[*items, {"role": "user", "content": "b", "id": "mine"}]).json()
    path = f"/v1/responses/{response['id']}/input_items"
    listed = served.http.get(path, params={"order": "asc"}).json()
    assert [item["type"] for item in listed["data"]] == ["message", "function_call", "function_call_output", "message"]
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "a"}]
    assert (listed["last_id"], listed["has_more"]) == ("mine", False)
    page = served.http.get(path, params={"limit": 2}).json()
    assert page["first_id"] == "mine" and page["has_more"] and len(page["data"]) == 2
    rest = served.http.get(path, params={"limit": 2, "after": page["last_id"]}).json()
    assert [item["id"] for item in page["data"] + rest["data"]] == [item["id"] for item in listed["data"][::-1]]
    refused = ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"limit": [2, 3]}, {"order": "up"}, {"after": "z"})
    for query in (*refused, {"include": "x"}, {"no_such_parameter": 1}):
        assert refusal(served.http.get(path, params=query))["param"] == next(iter(query))


def test_a_running_response_is_found_and_cancelled(served: Any) -> None:
    reached, lines = threading.Event(), []

    async def wait(call: Any) -> None:
        if call.outputs == 3:
            reached.set()
            await asyncio.Event().wait()

    served.engine.before = wait
    with (
        described_client(served.url) as http,
        http.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as stream,
    ):
        incoming = stream.iter_lines()
        while not lines or "created" not in lines[-1]:
            lines.append(next(incoming))
        lines.append(next(incoming))
        path = f"/v1/responses/{json.loads(lines[-1].removeprefix('data: '))['response']['id']}"
        assert reached.wait(PATIENCE)
        found = served.http.get(path).json()
        assert found["status"] == "in_progress" and found["output"][0]["status"] == "in_progress"
        assert served.http.get(f"{path}/input_items").json()["data"][0]["content"][0]["text"] == "hi"
        refusal(served.http.delete(path))
        cancelled = served.http.post(f"{path}/cancel").json()
        assert cancelled["status"] == "cancelled" and cancelled["output"][0]["content"][0]["text"] == "Hel"
        lines += incoming
    assert served.engine.calls[0].closed.is_set()
    last = events("\n".join(lines) + "\n")[-1]
    assert last["type"] == "response.incomplete" and last["response"]["output"] == cancelled["output"]
    assert served.http.get(path).json() == last["response"]
    assert "ended" in refusal(served.http.post(f"{path}/cancel"))["message"]


def test_a_response_for_which_memory_did_not_suffice_may_be_asked_for_again(served: Any) -> None:
    served.engine.finish, served.engine.error, served.engine.code = "error", "The GPU is full.", "out_of_memory"
    assert refusal(post(served), 503)["code"] == "out_of_memory"


def test_a_response_that_fails(served: Any) -> None:
    served.engine.finish, served.engine.error = "error", "The logits are not numbers."
    assert refusal(post(served), 500)["code"] == "row_failed"
    *_, item, last = events(post(served, stream=True).text)
    assert item["item"]["status"] == "incomplete" and last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "The logits are not numbers."}
    assert served.http.get(f"/v1/responses/{last['response']['id']}").json() == last["response"]


def test_without_storage(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode(REPLY, False))
    with running(create_app(engine, tokenizer)) as url, described_client(url) as http:
        body = http.post("/v1/responses", json={"input": "hi"}).json()
        assert body["output"][0]["content"][0]["text"] == REPLY and body["store"] is False
        for fields in ({"store": True}, {"previous_response_id": body["id"]}):
            error = refusal(http.post("/v1/responses", json={"input": "hi", **fields}))
            assert error["param"] == next(iter(fields)) and "data directory" in error["message"]
        assert refusal(http.get(f"/v1/responses/{body['id']}"), 404)["code"] == "storage_off"


def test_fields_that_ask_for_nothing_are_accepted(served: Any) -> None:
    neutral: dict[str, Any] = {
        "background": False,
        "include": [],
        "truncation": "disabled",
        "service_tier": "auto",
        "reasoning": {"effort": None},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "top_logprobs": 0,
        "stream_options": None,
        "conversation": None,
    }
    assert post(served, **neutral).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{**CALL, "arguments": 1}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[0].call_id"),
        ({"input": "fox " * 400}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 257, "ignore_eos": True}, "max_output_tokens"),
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort"),
        ({"reasoning": {"more": 1}}, "reasoning.more"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}, "more": 1}}}, "text.format.more"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{"type": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": 1}}]}, "tools[0].parameters.type"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 600}}, "metadata.a"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"temperature": -1}, "temperature"),
        ({"user": "x" * 513}, "user"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
def test_refusals_name_the_field(served: Any, fields: dict[str, Any], param: str) -> None:
    error = refusal(post(served, **fields))
    assert error["param"] == param, error
    assert served.engine.calls == []


def test_queries_of_stored_responses(served: Any) -> None:
    path = f"/v1/responses/{post(served).json()['id']}"
    assert served.http.get(path, params={"stream": "false"}).status_code == 200
    for query in ({"stream": "true"}, {"include": "x"}, {"starting_after": "3"}, {"no_such_parameter": "1"}):
        assert refusal(served.http.get(path, params=query))["param"] == next(iter(query))


def test_an_unknown_model_is_not_found(served: Any) -> None:
    assert refusal(post(served, model="gpt"), 404)["code"] == "model_not_found"
