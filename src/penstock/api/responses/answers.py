"""What responses look like, whole and as events: types for the API's description."""

from typing import Any, Literal

import msgspec

from penstock.api.effort import Effort
from penstock.api.kv_policy import ContextUsage
from penstock.api.responses.items import InputText, ItemStatus, ReasoningText, SummaryText
from penstock.api.responses.schema import NamedFunction

ResponseStatus = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]


class SaidText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """Text of the model's message; of an input, without log probabilities. There are never annotations."""

    text: str
    annotations: list[Any]
    logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class SaidMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """A message that the model has written, an item of the output."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[SaidText]


class SaidReasoning(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """What the model thought before its message. It is never summed up."""

    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class SaidCall(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    """A call of a tool; `arguments` is JSON, unless it was cut off."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET


OutputItem = SaidMessage | SaidReasoning | SaidCall


class AskedMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """Something that was said before."""

    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | SaidText]


class AskedReasoning(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """Reasoning of an earlier output."""

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | None


class AskedResult(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"):
    """What a tool that was called has given."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[InputText]


InputItem = AskedMessage | AskedReasoning | SaidCall | AskedResult


class InputItems(msgspec.Struct, forbid_unknown_fields=True):
    """A page of what a response was asked."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct, forbid_unknown_fields=True):
    """How many tokens a prompt has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class InputDetails(msgspec.Struct, forbid_unknown_fields=True):
    """How much of the input came from the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, forbid_unknown_fields=True):
    """How much of the output is reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens of a response's input and output."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int
    kv_policy: ContextUsage | msgspec.UnsetType = msgspec.UNSET


class ResponseError(msgspec.Struct, forbid_unknown_fields=True):
    """Why a response has failed."""

    code: Literal["server_error"]
    message: str


class IncompleteDetails(msgspec.Struct, forbid_unknown_fields=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class ReasoningConfig(msgspec.Struct, forbid_unknown_fields=True):
    """How much to think, as it was asked."""

    effort: Effort | None
    summary: None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """What the text had to be like, as it was asked for."""

    format: dict[str, Any]


class ToldTool(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A tool that could be called."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ToldNamespace(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="namespace"):
    """Tools that could be called, which belong together."""

    name: str
    description: str | None
    tools: list[ToldTool]


class ResponseAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of `/v1/responses`: what came out, and what was asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    temperature: float
    top_p: float
    seed: int | None
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningConfig
    service_tier: str
    store: bool
    text: TextFormat
    tool_choice: str | NamedFunction
    tools: list[ToldTool | ToldNamespace]
    top_logprobs: int
    truncation: Literal["disabled"]
    user: str | None


class _Event(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    sequence_number: int


class _ResponseEvent(_Event):
    response: ResponseAnswer


class ResponseCreated(_ResponseEvent, tag="response.created"):
    """The first event of a stream."""


class ResponseInProgress(_ResponseEvent, tag="response.in_progress"):
    """The second event of a stream."""


class ResponseCompleted(_ResponseEvent, tag="response.completed"):
    """The last event of a response that has come to its end."""


class ResponseIncomplete(_ResponseEvent, tag="response.incomplete"):
    """The last event of a response that was cut off or cancelled."""


class ResponseFailed(_ResponseEvent, tag="response.failed"):
    """The last event of a response that could not go on."""


class _ItemEvent(_Event):
    output_index: int
    item: OutputItem


class OutputItemAdded(_ItemEvent, tag="response.output_item.added"):
    """An item of the output begins."""


class OutputItemDone(_ItemEvent, tag="response.output_item.done"):
    """An item is as it stays."""


class _PlacedEvent(_Event):
    item_id: str
    output_index: int


class _PartEvent(_PlacedEvent):
    content_index: int
    part: SaidText | ReasoningText


class ContentPartAdded(_PartEvent, tag="response.content_part.added"):
    """A part of an item begins."""


class ContentPartDone(_PartEvent, tag="response.content_part.done"):
    """A part is as it stays."""


class OutputTextDelta(_PlacedEvent, tag="response.output_text.delta"):
    """More text of a message."""

    content_index: int
    delta: str
    logprobs: list[Any]
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


class OutputTextDone(_PlacedEvent, tag="response.output_text.done"):
    """All text of a message."""

    content_index: int
    text: str
    logprobs: list[Any]


class ReasoningTextDelta(_PlacedEvent, tag="response.reasoning_text.delta"):
    """What a part of the reasoning goes on with."""

    content_index: int
    delta: str
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


class ReasoningTextDone(_PlacedEvent, tag="response.reasoning_text.done"):
    """All of an item's reasoning."""

    content_index: int
    text: str


class ArgumentsDelta(_PlacedEvent, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


class ArgumentsDone(_PlacedEvent, tag="response.function_call_arguments.done"):
    """All of a call's arguments."""

    arguments: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
)
