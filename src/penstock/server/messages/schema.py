"""The fields of Anthropic's requests: what is accepted, of which type, and what is refused by name."""

from collections.abc import Collection
from typing import Any, Literal, TypeVar

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.server.messages.thinking import Thinking
from penstock.server.parsing import NOT_YET, Neutral, check_count, convert, decode_object, drop_neutral

NEUTRAL: Neutral = {
    "container": ((), "is not supported; leave it out."),
    "context_management": (({}, {"edits": []}), "conversations are never edited; leave it out."),
    "diagnostics": ((), "is not supported; leave it out."),
    "inference_geo": ((), "is not supported; leave it out."),
    "mcp_servers": (([],), "is not supported; tools are called by the client."),
    "output_format": ((), "is not supported; use output_config.format."),
    "service_tier": (("auto", "standard_only"), 'only "auto" and "standard_only" are supported.'),
    "speed": (("standard",), 'only "standard" is supported.'),
    "user_profile_id": ((), "is not supported; use metadata.user_id."),
    "workspace_id": ((), "is not supported; leave it out."),
}
_NEUTRAL_IN_BLOCKS: Neutral = {
    "caller": (({"type": "direct"},), "tools are called directly only; leave it out."),
    "citations": (([], {"enabled": False}), "is not supported; leave it out."),
    "toolset_name": ((), "is not supported; leave it out."),
}
_NEUTRAL_IN_TOOLS: Neutral = {
    "allowed_callers": ((["direct"],), "tools are called directly only; leave it out."),
    "defer_loading": ((False,), "all tools are shown to the model; leave it out."),
    # Inputs are always streamed as they come.
    "eager_input_streaming": ((True,), "inputs are streamed as they come; leave it out."),
    "input_examples": (([],), "is not supported; put examples into the description."),
    "type": (("custom",), 'only "custom" is supported: the tools of the client.'),
}
_NEUTRAL_IN_OUTPUT: Neutral = {"effort": ((), NOT_YET)}
_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prompt up to here is to stay in the prefix cache for so long, again from each use on; see `marks.py`."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """Reasoning of an earlier answer. Nothing is signed here, so a signature is not looked at."""

    thinking: str
    signature: str | None = None


class ToolUseBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call of a tool in an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResultBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """What a tool that was called has given."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class TurnFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: str
    content: str | list[Block]


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that the model may call."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether tools are called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the client says of a request; `user_id` goes into the log."""

    user_id: str | None = None


class JsonFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer must be like."""

    format: JsonFormat | None = None


class PromptFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/messages/count_tokens`."""

    messages: list[TurnFields]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None


class MessagesFields(PromptFields, frozen=True, kw_only=True):
    """The body of `/v1/messages`."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    timeout: float | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None


Fields = TypeVar("Fields", bound=PromptFields)


def parse(body: bytes, kind: type[Fields]) -> Fields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    drop_neutral(fields, NEUTRAL, "")
    check_count("messages", fields.get("messages"))
    if isinstance(fields.get("output_config"), dict):
        drop_neutral(fields["output_config"], _NEUTRAL_IN_OUTPUT, "output_config.")
    _check_blocks(fields.get("system"), "system", _BLOCKS["system"])
    for place, tool in _objects(fields.get("tools"), "tools"):
        drop_neutral(tool, _NEUTRAL_IN_TOOLS, f"{place}.")
    for place, message in _objects(fields.get("messages"), "messages"):
        role = message.get("role")
        if isinstance(role, str) and role not in _BLOCKS:
            raise InvalidParameter(f"{place}.role", f"{role[:40]!r} is not one of {', '.join(_BLOCKS)}.")
        if isinstance(role, str):
            _check_blocks(message.get("content"), f"{place}.content", _BLOCKS[role])
    return convert(fields, kind)


def _check_blocks(content: Any, path: str, kinds: Collection[str]) -> None:
    """Refuse blocks of other kinds with a message that says which there are; check what has no effect in others."""
    for place, block in _objects(content, path):
        drop_neutral(block, _NEUTRAL_IN_BLOCKS, f"{place}.")
        kind = block.get("type")
        if isinstance(kind, str) and kind not in kinds:
            raise InvalidParameter(f"{place}.type", f"{kind[:40]!r} is not supported here; only {', '.join(kinds)}.")
        if kind == "thinking" and block.pop("cache_control", None) is not None:
            raise InvalidParameter(f"{place}.cache_control", "thinking cannot be marked; mark the block behind it.")
        if kind == "tool_result":
            _check_blocks(block.get("content"), f"{place}.content", ("text",))


def _objects(items: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects in a list, and their places."""
    items = items if isinstance(items, list) else []
    return [(f"{path}[{index}]", item) for index, item in enumerate(items) if isinstance(item, dict)]
