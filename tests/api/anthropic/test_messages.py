"""Anthropic's messages: what requests become, what answers contain, and refusals in Anthropic's form."""

import json
from typing import Any

import httpx
import pytest

from penstock.core.grammar import Grammar
from penstock.core.sampling import SamplingParams
from support.listed_parser import ListedParser

REPLY = "Hello, wörld 👩‍🚀!"
USER = {"role": "user", "content": "hi"}


def post(served: Any, path: str = "/v1/messages", **fields: object) -> httpx.Response:
    fields = {"messages": [USER], **fields} if "messages" not in fields else fields
    if path == "/v1/messages":
        fields = {"max_tokens": 100, **fields}
    response: httpx.Response = served.http.post(path, json=fields, headers={"anthropic-version": "2023-06-01"})
    return response


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; their names must be their types."""
    parts = text.split("\n\n")
    assert parts[-1] == ""
    result = []
    for part in parts[:-1]:
        name, data = part.split("\n")
        result.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {result[-1]['type']}"
    return result


def prompt(served: Any) -> str:
    text: str = served.tokenizer.decode(served.engine.calls[-1].prompt, skip_special=False)
    return text


def refusal(response: httpx.Response, status: int = 400, kind: str = "invalid_request_error") -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error" and set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind
    message: str = body["error"]["message"]
    return message


def test_an_answer(served: Any) -> None:
    body = post(served, model="alias").json()
    assert body["id"].startswith("msg_")
    assert body | {"id": ""} == {
        "id": "",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [{"type": "text", "text": REPLY, "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(served.engine.calls[0].prompt) - 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": len(served.engine.reply),
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_a_stream(served: Any) -> None:
    response = post(served, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    first, start, *deltas, stop, last, end = events(response.text)
    assert first["type"] == "message_start" and first["message"]["content"] == []
    assert first["message"]["stop_reason"] is None and first["message"]["usage"]["cache_read_input_tokens"] == 4
    assert start == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": "", "citations": None},
    }
    assert {(delta["type"], delta["index"], delta["delta"]["type"]) for delta in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert "".join(delta["delta"]["text"] for delta in deltas) == REPLY
    assert stop == {"type": "content_block_stop", "index": 0}
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == len(served.engine.reply)
    assert end == {"type": "message_stop"}


@pytest.mark.parametrize("stream", [False, True])
def test_how_an_answer_ended(served: Any, stream: bool) -> None:
    def ending(**fields: object) -> tuple[str, str | None]:
        response = post(served, stream=stream, **fields)
        body = events(response.text)[-2]["delta"] if stream else response.json()
        return body["stop_reason"], body["stop_sequence"]

    assert ending(max_tokens=3) == ("max_tokens", None)
    served.engine.stop_reason = "wörld"
    assert ending(stop_sequences=["wörld"]) == ("stop_sequence", "wörld")
    served.engine.stop_reason = 7
    assert ending() == ("end_turn", None)


def test_thoughts_and_calls(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.text.output_format.PlainParser", ListedParser)
    body = post(served).json()
    thinking, text, first, second = body["content"]
    assert thinking == {"type": "thinking", "thinking": "Let me see.", "signature": ""}
    assert text["text"] == "I look."
    assert first | {"id": ""} == {"type": "tool_use", "id": "", "name": "weather", "input": {"city": "Rome"}}
    assert second["input"] == {} and first["id"] != second["id"]
    assert body["stop_reason"] == "tool_use"
    streamed = events(post(served, stream=True).text)
    starts = [event["content_block"] for event in streamed if event["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert [start["input"] for start in starts[2:]] == [{}, {}]
    parts = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert [part["type"] for part in parts] == [
        *["thinking_delta"] * 2,
        "signature_delta",
        *["text_delta"] * 2,
        *["input_json_delta"] * 3,
    ]
    assert "".join(part["partial_json"] for part in parts[5:7]) == '{"city": "Rome"}'
    order = [(event["type"].removeprefix("content_block_"), event["index"]) for event in streamed if "index" in event]
    assert order == sorted(order, key=lambda pair: pair[1])
    assert streamed[-2]["delta"]["stop_reason"] == "tool_use"


def test_fields_reach_the_engine(served: Any) -> None:
    fields = {"max_tokens": 9, "temperature": 0.25, "top_p": 0.5, "top_k": 7, "stop_sequences": ["zz"]}
    assert post(served, **fields, metadata={"user_id": "me"}).status_code == 200
    expected = SamplingParams(max_tokens=9, temperature=0.25, top_p=0.5, top_k=7, stop=("zz",))
    assert served.engine.calls[0].params == expected


def test_formats_become_grammars(served: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert post(served, output_config={"format": {"type": "json_schema", "schema": schema}}).status_code == 200
    assert served.engine.calls[0].params.grammar == Grammar.json_schema(schema, "output_config.format.schema")


def test_conversations_go_through_the_template(served: Any) -> None:
    texts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two<|im_end|>", "citations": None}]
    turns = [{"role": "user", "content": texts}, USER, {"role": "assistant", "content": "a"}, USER]
    assert post(served, system=[{"type": "text", "text": "be"}], messages=turns).status_code == 200
    assert prompt(served) == (
        "<|im_start|>system: be<|im_end|><|im_start|>user: one\ntwo<|im_end|>\nhi<|im_end|>"
        "<|im_start|>assistant: a<|im_end|><|im_start|>user: hi<|im_end|><|im_start|>assistant: "
    )
    assert served.engine.calls[0].prompt.count(served.tokenizer.token_id("<|im_end|>")) == 4
    assert post(served, system="be", messages=[USER, {"role": "system", "content": "now"}]).status_code == 200
    assert "system: be<|im_end|>" in prompt(served) and "system: now<|im_end|>" in prompt(served)


def test_an_answer_that_was_begun_is_continued(served: Any) -> None:
    for content in ("go on", [{"type": "text", "text": "go on"}]):
        assert post(served, messages=[USER, {"role": "assistant", "content": content}]).status_code == 200
        assert prompt(served) == "<|im_start|>user: hi<|im_end|><|im_start|>assistant: go on"


CALL = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}}


def result(**fields: object) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", **fields}]}


def test_calls_and_their_results(served: Any) -> None:
    called = {"role": "assistant", "content": [{"type": "text", "text": "let me"}, CALL]}
    for fields, text in (
        ({"content": "42"}, "42"),
        ({"content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]}, "4\n2"),
        ({"content": "no", "is_error": True}, "Error: no"),
        ({}, ""),
    ):
        answered = result(**fields)
        answered["content"].append({"type": "text", "text": "go on"})
        assert post(served, messages=[USER, called, answered]).status_code == 200
        # The template has no place for calls, so the call is part of the text.
        assert prompt(served).endswith(
            'assistant: let me\n{"name": "weather", "arguments": {"city": "Köln"}}<|im_end|>'
            f"<|im_start|>tool: {text}<|im_end|><|im_start|>user: go on<|im_end|><|im_start|>assistant: "
        )


def test_tokens_are_counted_as_they_are_used(served: Any) -> None:
    fields = {"system": "be", "messages": [USER, {"role": "assistant", "content": "a"}, USER], "model": "scripted"}
    counted = post(served, "/v1/messages/count_tokens", **fields)
    assert post(served, **fields).status_code == 200
    assert counted.json() == {"input_tokens": len(served.engine.calls[0].prompt)}
    # A prompt that is too long can be counted.
    long = [{"role": "user", "content": "fox " * 5000}]
    assert post(served, "/v1/messages/count_tokens", messages=long).json()["input_tokens"] > 5000


def test_fields_that_ask_for_nothing_are_accepted(served: Any) -> None:
    neutral: dict[str, Any] = {
        "thinking": {"type": "disabled"},
        "service_tier": "standard_only",
        "tools": [],
        "system": None,
        "metadata": {},
        "stop_sequences": [],
        "container": None,
        "mcp_servers": [],
    }
    text = {"type": "text", "text": "x", "cache_control": None, "citations": None}
    assert post(served, **neutral, messages=[{"role": "user", "content": [text]}]).status_code == 200


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0].type"),
        ({"messages": [USER, result(content="x")]}, "messages[1].content[0].tool_use_id"),
        ({"messages": [USER, {"role": "assistant", "content": [CALL]}]}, "messages[1].content[0]"),
        (
            {"messages": [USER, {"role": "assistant", "content": [CALL]}, result(content=[{"type": "image"}])]},
            "messages[2].content[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "e"}}]}
                ]
            },
            "messages[0].content[0].cache_control.type",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, "tools"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"output_config": {"effort": "a lot"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "yaml", "schema": {}}}}, "output_config.format.type"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": -7}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"metadata": {"user_id": "x" * 600}}, "metadata.user_id"),
        ({"metadata": {"more": 1}}, "metadata.more"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"stop": ["x"]}, "stop"),
    ],
)
def test_refusals_name_the_field(served: Any, fields: dict[str, Any], place: str) -> None:
    message = refusal(post(served, **fields))
    assert message.startswith(f"{place}:"), message
    assert served.engine.calls == []


def test_errors_have_anthropics_form(served: Any) -> None:
    assert "'gpt'" in refusal(post(served, model="gpt"), 404, "not_found_error")
    assert "'gpt'" in refusal(post(served, "/v1/messages/count_tokens", model="gpt"), 404, "not_found_error")
    refusal(served.http.get("/v1/messages"), 405)
    refusal(served.http.get("/v1/messages/nowhere"), 404, "not_found_error")
    refusal(served.http.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}))
    refusal(served.http.post("/v1/messages/count_tokens", content=b"{}", headers={"content-type": "text/plain"}), 415)
    long = json.dumps({"messages": "x" * 300_000}).encode()
    too_long = served.http.post("/v1/messages", content=long, headers={"content-type": "application/json"})
    refusal(too_long, 413, "request_too_large")
    served.engine.unavailable = "The engine is starting."
    response = post(served)
    assert refusal(response, 529, "overloaded_error") == "The engine is starting."
    assert response.headers["retry-after"] == "1"
    served.engine.unavailable = None
    served.engine.finish, served.engine.error = "error", "The logits are not numbers."
    assert refusal(post(served), 500, "api_error") == "The logits are not numbers."


def test_an_error_in_the_middle_of_a_stream(served: Any) -> None:
    served.engine.finish, served.engine.error = "error", "The logits are not numbers."
    last = events(post(served, stream=True).text)[-1]
    assert last == {"type": "error", "error": {"type": "api_error", "message": "The logits are not numbers."}}
