"""What answers say, in one form for all dialects, whole and streamed."""

import json
from collections.abc import Sequence
from typing import Any

from penstock.api.anthropic.tool_input import whole_members

COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def data_of(stream: str) -> list[dict[str, Any]]:
    """The JSON objects of a stream's events."""
    lines = (line for line in stream.split("\n") if line.startswith("data: {"))
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def chat(body: dict[str, Any]) -> dict[str, Any]:
    """A whole chat: what stands beside the choices, and them."""
    choices = []
    for choice in body["choices"]:
        message = choice.pop("message")
        assert message.pop("role") == "assistant"
        calls = [_call(call) for call in message.pop("tool_calls", [])]
        logprobs = choice.pop("logprobs")
        choice["logprobs"] = None if logprobs is None else logprobs["content"]
        said = {"content": message.pop("content"), "reasoning": message.pop("reasoning_content", ""), "calls": calls}
        assert not message
        choices.append(choice | said)
    return _beside(body, choices)


def streamed_chat(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A streamed chat in the form of a whole one."""
    body, choices = _put_together(events)
    for choice in choices:
        deltas = choice.pop("delta")
        assert deltas[0].pop("role") == "assistant" and not any("role" in delta for delta in deltas)
        contents = [delta["content"] for delta in deltas if delta.get("content") is not None]
        choice["content"] = "".join(contents) if contents else None
        choice["reasoning"] = "".join(delta.get("reasoning_content", "") for delta in deltas)
        choice["calls"] = _streamed_calls([call for delta in deltas for call in delta.get("tool_calls", [])])
        entries = [part["content"] for part in choice["logprobs"] if part is not None]
        choice["logprobs"] = [entry for part in entries for entry in part] if entries else None
    return _beside(body, choices)


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """A whole completion."""
    return _beside(body, body["choices"])


def streamed_completion(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A streamed completion in the form of a whole one."""
    body, choices = _put_together(events)
    for choice in choices:
        choice["text"] = "".join(choice["text"])
        parts = [part for part in choice["logprobs"] if part is not None]
        choice["logprobs"] = {name: sum((part[name] for part in parts), []) for name in COLUMNS} if parts else None
    return _beside(body, choices)


def response(body: dict[str, Any]) -> dict[str, Any]:
    """A whole response, without its ids and times."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for item in body["output"]:
        if item["type"] == "function_call":
            said["calls"].append((item["name"], item["arguments"]))
        else:
            (part,) = item["content"]
            said["content" if item["type"] == "message" else "reasoning"] += part["text"]
    statuses = [item["status"] for item in body["output"]]
    return said | {name: body[name] for name in ("status", "usage", "model", "seed")} | {"statuses": statuses}


def streamed_response(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A streamed response: what its deltas add up to has to be what its last event says."""
    told = response(events[-1]["response"])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for name, kind in (("content", "output_text"), ("reasoning", "reasoning_text")):
        assert "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta") == told[name]
    arguments: dict[int, str] = {}
    for event in events:
        if event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
            arguments[event["output_index"]] = ""
        if event["type"] == "response.function_call_arguments.delta":
            arguments[event["output_index"]] += event["delta"]
    assert list(arguments.values()) == [text for _, text in told["calls"]]
    return told


def message(body: dict[str, Any]) -> dict[str, Any]:
    """A whole message, without its id."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for block in body["content"]:
        match block["type"]:
            case "text":
                said["content"] += block["text"]
            case "thinking":
                said["reasoning"] += block["thinking"]
            case "tool_use":
                said["calls"].append((block["name"], block["input"]))
    return said | {name: body[name] for name in ("stop_reason", "stop_sequence", "usage", "model")}


def streamed_message(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A streamed message in the form of a whole one."""
    body = events[0]["message"]
    texts: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(texts)
                body["content"].append(event["content_block"])
                texts.append("")
            case "content_block_delta":
                delta = event["delta"]
                texts[event["index"]] += delta.get("text", delta.get("thinking", delta.get("partial_json", "")))
            case "message_delta":
                body |= event["delta"] | {"usage": event["usage"]}
    for block, text in zip(body["content"], texts, strict=True):
        match block["type"]:
            case "text" | "thinking":
                block[block["type"]] = text
            case "tool_use":
                block["input"] = whole_members(text)
    assert events[-1]["type"] == "message_stop"
    return message(body)


def _beside(body: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    """What is the same in every answer to one request, without the id and the time."""
    assert isinstance(body.pop("created"), int) and isinstance(body.pop("id"), str)
    body["object"] = body["object"].removesuffix(".chunk")
    return body | {"choices": choices}


def _put_together(events: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A stream's fields beside its choices, and each choice with lists of what its events had of a name."""
    *parts, last = events
    assert last["choices"] == [] and last["usage"] is not None
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in parts:
        (part,) = event.pop("choices")
        choice = choices.setdefault(part["index"], {"ended": False})
        assert not choice["ended"]
        choice["ended"] = part["finish_reason"] is not None
        for name, value in part.items():
            if name in ("delta", "text", "logprobs"):
                choice.setdefault(name, []).append(value)
            elif name == "token_ids":
                choice[name] = choice.get(name, []) + value
            else:
                # What is not known before the end is told with it, and the rest with the first event.
                assert choice.get(name) in (None, value)
                choice[name] = value
        for name in ("usage", "obfuscation"):
            event.pop(name, None)
        for name, value in event.items():
            assert body.setdefault(name, value) == value
    assert all(choice.pop("ended") for choice in choices.values())
    return body | {"usage": last["usage"]}, [choices[index] for index in sorted(choices)]


def _call(call: dict[str, Any]) -> tuple[str, str]:
    assert call["type"] == "function" and call["id"]
    return call["function"]["name"], call["function"]["arguments"]


def _streamed_calls(deltas: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    calls: list[list[str]] = []
    for delta in deltas:
        if "id" in delta:
            assert delta["index"] == len(calls)
            calls.append([delta["function"]["name"], ""])
        calls[delta["index"]][1] += delta["function"]["arguments"]
    return [(name, arguments) for name, arguments in calls]
