"""The fields of `/v1/responses`: what is accepted, of which type, and what is refused by name."""

from typing import Any

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.server.extras import check_metadata
from penstock.server.parsing import NOT_YET, Neutral, check_count, convert, decode_object, drop_neutral

NEUTRAL: Neutral = {
    "background": ((False,), "responses are not computed in the background; leave it out, and stream."),
    "context_management": (([],), "conversations are never shortened; leave it out."),
    "conversation": ((), "is not supported; use previous_response_id."),
    "include": (([],), "nothing further can be included; leave it out."),
    "max_tool_calls": ((), "limits tools that the server calls, of which there are none; leave it out."),
    "moderation": ((), "is not supported; leave it out."),
    "prompt": ((), "is not supported; send the prompt as input and instructions."),
    "prompt_cache_key": ((), "is not supported; common prefixes are always cached, and cache_salt keeps them apart."),
    "prompt_cache_options": (({},), NOT_YET),
    "prompt_cache_retention": (("in_memory",), 'only "in_memory" is supported.'),
    "reasoning": (({}, {"effort": None}, {"effort": None, "summary": None}), NOT_YET),
    "safety_identifier": ((), "is not supported; use user."),
    "service_tier": (("auto", "default"), 'only "auto" is supported; use priority.'),
    "stream_options": (({}, {"include_obfuscation": False}), "nothing is ever added to hide lengths; leave it out."),
    "top_logprobs": ((0,), NOT_YET),
    "truncation": (("disabled",), 'only "disabled" is supported: no prompt is truncated.'),
}
_NEUTRAL_IN_TOOLS: Neutral = {
    "allowed_callers": ((["direct"],), "tools are called directly only; leave it out."),
    "async": ((False,), "is not supported; leave it out."),
    "defer_loading": ((False,), "all tools are shown to the model; leave it out."),
    "output_schema": ((), "is not supported; leave it out."),
}
_NEUTRAL_IN_TEXT: Neutral = {
    "verbosity": (("medium",), 'only "medium" is supported.'),
}


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A function of the client that the model may call."""

    name: str
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """The one function to call."""

    name: str


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the text must be like."""

    format: dict[str, Any] | None = None


class ResponsesFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/responses`. None stands for the default."""

    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def parse_response(body: bytes) -> ResponsesFields:
    """Parse a body; raises RequestError, naming the field."""
    given = decode_object(body)
    drop_neutral(given, NEUTRAL, "")
    check_count("input", given.get("input"))
    if isinstance(given.get("text"), dict):
        drop_neutral(given["text"], _NEUTRAL_IN_TEXT, "text.")
    tools = given.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else []):
        if isinstance(tool, dict):
            _check_kind(tool, f"tools[{index}]")
            drop_neutral(tool, _NEUTRAL_IN_TOOLS, f"tools[{index}].")
    if isinstance(given.get("tool_choice"), dict):
        _check_kind(given["tool_choice"], "tool_choice")
    fields = convert(given, ResponsesFields)
    check_metadata(fields.metadata or {})
    return fields


def _check_kind(tool: dict[str, Any], path: str) -> None:
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "function":
        raise InvalidParameter(
            f"{path}.type", f"{kind[:40]!r} is not supported; only 'function', a tool of the client."
        )
