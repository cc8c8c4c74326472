"""The fields of chats, completions and requests for vectors: what a request becomes, in whichever dialect it comes.

They have the names of OpenAI's API and of vLLM.
"""

from typing import Any, Literal

import msgspec

from penstock.api.effort import Effort
from penstock.api.kv_policy import KVPolicyField
from penstock.api.tools import NamedTool, ToolFields
from penstock.core.vector_form import OutputType
from penstock.core.vectors import Pooling

ROLES = ("system", "developer", "user", "assistant", "tool")


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a response is streamed."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The call of an earlier answer; `arguments` is JSON, or what there is of it where the answer was cut off.

    Some clients send the object itself.
    """

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of an earlier answer."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class CommonFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats have in common. None stands for the default."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    kv_policy: KVPolicyField | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    timeout: float | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    user: str | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class CompletionFields(CommonFields, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    forced_bos_token: str | int | None = None


class ChatFields(CommonFields, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ToolFields] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None


class ScoringFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What requests for scores and classes have in common. None stands for the default."""

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None
    instruction: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    user: str | None = None


class EmbeddingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/embeddings`. None stands for the default."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    pooling: Pooling | None = None
    input_type: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    output_dtype: OutputType | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    user: str | None = None
