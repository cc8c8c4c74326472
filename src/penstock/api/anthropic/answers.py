"""What messages look like, whole and as events: types for the API's description."""

from typing import Any, Literal

import msgspec

from penstock.api.kv_policy import ContextUsage

# Only hosted models end with "refusal".
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class AnthropicErrorFields(msgspec.Struct, forbid_unknown_fields=True):
    """What was wrong: its kind, and one sentence."""

    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """The body of every refusal in Anthropic's dialect."""

    type: Literal["error"]
    error: AnthropicErrorFields


class CountedTokens(msgspec.Struct, forbid_unknown_fields=True):
    """How many tokens a prompt has."""

    input_tokens: int


class TextContent(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Text. It never cites anything."""

    text: str
    citations: None


class ThinkingContent(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """Reasoning, which is not signed."""

    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class CacheCreation(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens of the prompt that are kept from now on, by their time."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class OutputTokensDetails(msgspec.Struct, forbid_unknown_fields=True):
    """How many of the output tokens are reasoning, shown or not, without the marks around it."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens of a message; all three kinds of input tokens add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_creation: CacheCreation
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    kv_policy: ContextUsage | msgspec.UnsetType = msgspec.UNSET


class MessageAnswer(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """The answer of `/v1/messages`; at the beginning of a stream, without contents and reason to stop."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message_start"):
    """The first event of a stream: the message without its content."""

    message: MessageAnswer


class ContentBlockStart(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="content_block_start"):
    """A block of the content begins; it is empty so far."""

    index: int
    content_block: Content


class TextDelta(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text_delta"):
    """What a block of text goes on with."""

    text: str


class ThinkingDelta(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="thinking_delta"):
    """What a block of reasoning goes on with."""

    thinking: str


class SignatureDelta(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="signature_delta"):
    """Where others sign reasoning; empty, since nothing is signed here."""

    signature: str


class InputDelta(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="input_json_delta"):
    """More of the text of a call's input."""

    partial_json: str


class ContentBlockDelta(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="content_block_delta"):
    """The block at `index` goes on."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class ContentBlockStop(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="content_block_stop"):
    """The block at `index` is complete."""

    index: int


class MessageEnd(msgspec.Struct, forbid_unknown_fields=True):
    """Why a message has ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message_delta"):
    """What is only known in the end."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class MessageFailed(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="error"):
    """The last event of a message that could not go on."""

    error: AnthropicErrorFields


MessageEvent = (
    MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop | MessageFailed
)
