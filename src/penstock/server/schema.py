"""The fields of requests: what is accepted, of which type, and what is refused by name."""

from typing import Any, Literal

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.server.parsing import NOT_YET as _NOT_YET
from penstock.server.parsing import Fields, Neutral, check_count, convert, decode_object, drop_neutral
from penstock.server.tools import NamedTool, ToolFields

ROLES = ("system", "developer", "user", "assistant", "tool")

# Fields of the OpenAI API and of vLLM that have no effect here: the values that ask for nothing (null always does),
# and what to say to the others.
NEUTRAL: Neutral = {
    "allowed_token_ids": (([],), _NOT_YET),
    "audio": ((), "is not supported; only text is."),
    "bad_words": (([],), _NOT_YET),
    "chat_template": ((), "is not accepted from clients; the model's own template is used."),
    "documents": (([],), _NOT_YET),
    "function_call": (("none",), "is not supported; use tool_choice."),
    "functions": (([],), "is not supported; use tools."),
    "length_penalty": ((1, 1.0), "beam search is not supported; leave it out."),
    "logits_processors": (([],), "is not supported; leave it out."),
    "modalities": ((["text"],), 'only ["text"] is supported.'),
    "prediction": ((), _NOT_YET),
    "prompt_cache_key": ((), "is not supported; common prefixes are always cached, and cache_salt keeps them apart."),
    "reasoning_effort": ((), _NOT_YET),
    "spaces_between_special_tokens": ((True,), "only true is supported."),
    "store": ((False,), "nothing is stored; leave it out or send false."),
    "suffix": (("",), "filling in the middle is not supported; leave it out."),
    "truncate_prompt_tokens": ((), "prompts are never truncated; shorten the prompt instead."),
    "use_beam_search": ((False,), "beam search is not supported; leave it out."),
    "verbosity": ((), _NOT_YET),
    "web_search_options": ((), "is not supported; leave it out."),
}
_NOT_IN_COMPLETIONS = "is a field of /v1/chat/completions; leave it out."
NEUTRAL_IN_COMPLETIONS: Neutral = {
    **NEUTRAL,
    "parallel_tool_calls": ((), _NOT_IN_COMPLETIONS),
    "tool_choice": (("none",), _NOT_IN_COMPLETIONS),
    "tools": (([],), _NOT_IN_COMPLETIONS),
}
_NEUTRAL_IN_MESSAGES: Neutral = {
    "annotations": (([],), "is not supported; leave it out."),
    "audio": ((), "is not supported; only text is."),
    "function_call": ((), "is not supported; use tool_calls."),
    "refusal": ((), "is not supported; leave it out."),
}

_REPEATED = "provider_specific_fields"


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a response is streamed."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The call of an earlier answer; `arguments` is JSON."""

    name: str
    arguments: str


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


class CommonFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats have in common. None stands for the default."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[int, float] | None = None
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
    best_of: int | None = None


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
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None


class EmbeddingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/embeddings`. None stands for the default."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    pooling: Literal["last", "mean"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    user: str | None = None


def parse_completion(body: bytes) -> CompletionFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    drop_neutral(fields, NEUTRAL_IN_COMPLETIONS, "")
    return convert(fields, CompletionFields)


def parse_embedding(body: bytes) -> EmbeddingFields:
    """Parse a body; raises RequestError, naming the field."""
    return convert(decode_object(body), EmbeddingFields)


def parse_chat(body: bytes) -> ChatFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    drop_neutral(fields, NEUTRAL, "")
    drop_neutral_in_messages(fields)
    return convert(fields, ChatFields)


def drop_neutral_in_messages(fields: dict[str, Any]) -> None:
    """Remove fields of messages whose values ask for nothing; refuse those whose values ask for something."""
    messages = fields.get("messages")
    check_count("messages", messages)
    for index, message in enumerate(messages if isinstance(messages, list) else []):
        if isinstance(message, dict):
            drop_neutral(message, _NEUTRAL_IN_MESSAGES, f"messages[{index}].")
            _drop_repeated(message, f"messages[{index}].{_REPEATED}")


def _drop_repeated(message: dict[str, Any], path: str) -> None:
    """Remove what LiteLLM adds to the messages that it hands out: fields of the message, once more."""
    repeated = message.pop(_REPEATED, None)
    fields = repeated.items() if isinstance(repeated, dict) else ((path, repeated),)
    if any(value is not None and message.get(name) != value for name, value in fields):
        raise InvalidParameter(path, "is accepted only where it repeats fields of the message; leave it out.")


def parse_fields(body: bytes, kind: type[Fields]) -> Fields:
    """Parse the body of any other request; raises RequestError, naming the field."""
    return convert(decode_object(body), kind)
