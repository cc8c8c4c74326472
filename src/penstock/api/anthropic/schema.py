"""The fields of Anthropic's requests: which are accepted, their types, and which are refused by name."""

from collections.abc import Collection
from typing import Any, Literal, TypeVar

import msgspec

from penstock.api.anthropic.thinking import Thinking
from penstock.api.effort import Effort
from penstock.api.fields import FieldReader, FieldRules, HintField, RefusedField
from penstock.api.kv_policy import KVPolicyField
from penstock.api.parsing import check_count, decode_object
from penstock.core.errors import InvalidParameter

_HOSTED = HintField("It is for the operator of a hosted API.")


def _creates(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "create"


RULES: FieldRules = {
    "betas": HintField("Nothing has to be switched on.", ([],)),
    "billing_policy": _HOSTED,
    "compaction": RefusedField("conversations are not summarized here; ask the model for a summary."),
    "container": RefusedField("is not supported; leave it out."),
    "context_management": HintField(
        "Conversations are never edited; the client can leave out what it does not need.", ({}, {"edits": []})
    ),
    "diagnostics": HintField("/v1/requests/{id}/explain says where a prompt differed from what was cached."),
    "fallback_credit_token": _HOSTED,
    "fallbacks": HintField("The server refuses nothing for its content, so that no other model takes its place."),
    "inference_geo": _HOSTED,
    "mcp_servers": RefusedField("is not supported; tools are called by the client.", ([],)),
    "output_format": RefusedField("is not supported; use output_config.format."),
    "safeguards": RefusedField("calls of tools are not checked for safety here; the client has to check them.", ([],)),
    "service_tier": HintField("The server has one tier; its operator orders tenants.", ("auto", "standard_only")),
    "speed": HintField("There is one speed.", ("standard",)),
    "thread": HintField(
        "Nothing is held; the client sends the whole conversation.",
        (),
        _creates,
        "no conversations are held; send the whole conversation.",
    ),
    "user_profile_id": _HOSTED,
    "workspace_id": _HOSTED,
}
_CALLED_DIRECTLY = RefusedField("tools are called directly only; leave it out.", ({"type": "direct"},))
BLOCK_RULES: FieldRules = {
    "caller": _CALLED_DIRECTLY,
    "citations": RefusedField("is not supported; leave it out.", ([], {"enabled": False})),
    "toolset_name": HintField("The tool's own name says which it is."),
}
THINKING_RULES: FieldRules = {
    "cache_control": HintField("Reasoning cannot be marked; the mark of a block behind it holds.")
}
THINKING_CONFIG_RULES: FieldRules = {"display": HintField("Reasoning is told whole.")}
OUTPUT_RULES: FieldRules = {
    "task_budget": HintField("Models that are served know no budgets of tasks; max_tokens holds.")
}
TOOL_RULES: FieldRules = {
    "allowed_callers": RefusedField("tools are called directly only; leave it out.", (["direct"],)),
    "defer_loading": HintField("All tools are shown to the model at once.", (False,)),
    # Inputs are always streamed as they come.
    "eager_input_streaming": HintField("Inputs are streamed as they come.", (True,)),
    "input_examples": HintField("Chat templates have no place for them; put examples into the description.", ([],)),
    "type": RefusedField('only "custom" is supported: the tools of the client.', ("custom",)),
}
_BILLING = "x-anthropic-billing-header"
_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prompt up to here is to stay in the prefix cache for `ttl`, again from each use on; see `marks.py`."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message that is text."""

    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """Reasoning of an earlier answer. Nothing is signed here, so a signature is not looked at."""

    thinking: str
    signature: str | None = None


class ToolUseBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call of a tool in an earlier answer. Of one that was cut off, the input may be text, or not there."""

    id: str
    name: str
    input: dict[str, Any] | list[Any] | str | None = None
    cache_control: CacheControl | None = None


class ToolResultBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """What a tool that was called has given."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class TurnFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: str
    content: str | list[ContentBlock]


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
    effort: Effort | None = None


class PromptFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/messages/count_tokens`."""

    messages: list[TurnFields]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig | None = None


class MessagesFields(PromptFields, frozen=True, kw_only=True):
    """The body of `/v1/messages`."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    kv_policy: KVPolicyField | None = None
    timeout: float | None = None
    metadata: Metadata | None = None


Fields = TypeVar("Fields", bound=PromptFields)


def parse(body: bytes, kind: type[Fields], reader: FieldReader) -> Fields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    reader.settle(fields, RULES)
    if isinstance(fields.get("thinking"), dict):
        reader.settle(fields["thinking"], THINKING_CONFIG_RULES, "thinking.")
    if isinstance(fields.get("output_config"), dict):
        reader.settle(fields["output_config"], OUTPUT_RULES, "output_config.")
    check_count("messages", fields.get("messages"))
    _leave_out_billing(fields, reader)
    _settle_blocks(fields.get("system"), "system", _BLOCKS["system"], reader)
    for place, tool in _objects(fields.get("tools"), "tools"):
        reader.settle(tool, TOOL_RULES, f"{place}.")
    for place, message in _objects(fields.get("messages"), "messages"):
        role = message.get("role")
        if isinstance(role, str) and role not in _BLOCKS:
            raise InvalidParameter(f"{place}.role", f"{role[:40]!r} is not one of {', '.join(_BLOCKS)}.")
        if isinstance(role, str):
            _settle_blocks(message.get("content"), f"{place}.content", _BLOCKS[role], reader)
    return reader.convert(fields, kind)


def _leave_out_billing(fields: dict[str, Any], reader: FieldReader) -> None:
    """Take out of the system's text what a client says to the operator of a hosted API there.

    It differs from request to request, so that no prefix of the prompt would ever be in the cache.
    """
    blocks = fields.get("system")
    if not isinstance(blocks, list):
        return
    for index, block in enumerate(blocks):
        text = block.get("text") if isinstance(block, dict) else None
        if isinstance(text, str) and text.startswith(f"{_BILLING}:"):
            reader.ignore(f"system[].{_BILLING}")
            # It is one line, which programs in between may have joined with others. The block stays, so that errors
            # name the client's own places.
            blocks[index] = {**block, "text": text.partition("\n")[2]}


def _settle_blocks(content: Any, path: str, kinds: Collection[str], reader: FieldReader) -> None:
    """Refuse blocks of other kinds with a message that says which there are; take out what has no effect in others."""
    for place, block in _objects(content, path):
        reader.settle(block, BLOCK_RULES, f"{place}.")
        kind = block.get("type")
        if isinstance(kind, str) and kind not in kinds:
            raise InvalidParameter(f"{place}.type", f"{kind[:40]!r} is not supported here; only {', '.join(kinds)}.")
        if kind == "thinking":
            reader.settle(block, THINKING_RULES, f"{place}.")
        if kind == "tool_result":
            _settle_blocks(block.get("content"), f"{place}.content", ("text",), reader)


def _objects(items: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects in a list, and their places."""
    items = items if isinstance(items, list) else []
    return [(f"{path}[{index}]", item) for index, item in enumerate(items) if isinstance(item, dict)]
