"""The fields of requests: what is accepted, of which type, and what is refused by name."""

import re
from typing import Any, Literal, TypeVar

import msgspec

from penstock.core.errors import InvalidParameter, RequestError
from penstock.server.tools import NamedTool, ToolFields

ROLES = ("system", "developer", "user", "assistant", "tool")

# Fields of the OpenAI API and of vLLM that have no effect here: the values that ask for nothing (null always does),
# and what to say to the others.
_NOT_YET = "is not supported yet; leave it out."
_NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "allowed_token_ids": (([],), _NOT_YET),
    "audio": ((), "is not supported; only text is."),
    "bad_words": (([],), _NOT_YET),
    "chat_template": ((), "is not accepted from clients; the model's own template is used."),
    "documents": (([],), _NOT_YET),
    "function_call": (("none",), "is not supported; use tool_choice."),
    "functions": (([],), "is not supported; use tools."),
    "length_penalty": ((1, 1.0), "beam search is not supported; leave it out."),
    "logits_processors": (([],), "is not supported; leave it out."),
    "metadata": (({},), "nothing is stored; leave it out."),
    "modalities": ((["text"],), 'only ["text"] is supported.'),
    "prediction": ((), _NOT_YET),
    "prompt_cache_key": ((), "is not supported; common prefixes are always cached, and cache_salt keeps them apart."),
    "reasoning_effort": ((), _NOT_YET),
    "service_tier": (("auto", "default"), 'only "auto" is supported; use priority.'),
    "spaces_between_special_tokens": ((True,), "only true is supported."),
    "store": ((False,), "nothing is stored; leave it out or send false."),
    "suffix": (("",), "filling in the middle is not supported; leave it out."),
    "truncate_prompt_tokens": ((), "prompts are never truncated; shorten the prompt instead."),
    "use_beam_search": ((False,), "beam search is not supported; leave it out."),
    "verbosity": ((), _NOT_YET),
    "web_search_options": ((), "is not supported; leave it out."),
}
_NOT_IN_COMPLETIONS = "is a field of /v1/chat/completions; leave it out."
_NEUTRAL_IN_COMPLETIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    **_NEUTRAL,
    "parallel_tool_calls": ((), _NOT_IN_COMPLETIONS),
    "tool_choice": (("none",), _NOT_IN_COMPLETIONS),
    "tools": (([],), _NOT_IN_COMPLETIONS),
}
_NEUTRAL_IN_MESSAGES: dict[str, tuple[tuple[Any, ...], str]] = {
    "annotations": (([],), "is not supported; leave it out."),
    "audio": ((), "is not supported; only text is."),
    "function_call": ((), "is not supported; use tool_calls."),
    "refusal": ((), "is not supported; leave it out."),
}


# Some clients write numbers that JSON does not have.
_NOT_FINITE = re.compile(rb'"(\w{1,40})"\s*:\s*(-?(?:NaN|Infinity|inf|nan))\b')


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a response is streamed."""

    include_usage: bool | None = None


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
    user: str | None = None


Fields = TypeVar("Fields")


def parse_completion(body: bytes) -> CompletionFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = _decode(body)
    _drop_neutral(fields, _NEUTRAL_IN_COMPLETIONS, "")
    return _convert(fields, CompletionFields)


def parse_embedding(body: bytes) -> EmbeddingFields:
    """Parse a body; raises RequestError, naming the field."""
    return _convert(_decode(body), EmbeddingFields)


def parse_chat(body: bytes) -> ChatFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = _decode(body)
    _drop_neutral(fields, _NEUTRAL, "")
    messages = fields.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else []):
        if isinstance(message, dict):
            _drop_neutral(message, _NEUTRAL_IN_MESSAGES, f"messages[{index}].")
    return _convert(fields, ChatFields)


def parse_fields(body: bytes, kind: type[Fields]) -> Fields:
    """Parse the body of any other request; raises RequestError, naming the field."""
    return _convert(_decode(body), kind)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        not_finite = _NOT_FINITE.search(body)
        if not_finite is not None:
            name, value = (group.decode("utf-8", "replace") for group in not_finite.groups())
            raise InvalidParameter(name, f"{value} is not a number in JSON; send a finite one.") from error
        raise RequestError(f"The body is not valid JSON: {str(error).partition(' - at')[0]}.") from error
    if not isinstance(fields, dict):
        raise RequestError("The body must be a JSON object.")
    return fields


def _drop_neutral(fields: dict[str, Any], table: dict[str, tuple[tuple[Any, ...], str]], path: str) -> None:
    """Remove fields whose values ask for nothing; refuse those whose values ask for something."""
    for name in [name for name in fields if name in table]:
        value = fields.pop(name)
        neutral, message = table[name]
        # JSON's true is not 1, but Python's is.
        if value is not None and not any(type(value) is type(other) and value == other for other in neutral):
            raise InvalidParameter(path + name, message)


def _convert(fields: dict[str, Any], kind: type[Fields]) -> Fields:
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error


def _explain(message: str) -> InvalidParameter:
    """A validation message such as "Expected `int | null`, got `str` - at `$.n`" as an error that names the field."""
    text, _, place = message.partition(" - at ")
    path = place.removeprefix("`key` in ").strip("`").lstrip("$.").removesuffix("[...]")
    for beginning, meaning in (
        ("Object contains unknown field `", "is not a field of this request; leave it out."),
        ("Object missing required field `", "is missing."),
    ):
        if text.startswith(beginning):
            field = text.removeprefix(beginning).rstrip("`")
            return InvalidParameter(f"{path}.{field}".lstrip("."), meaning)
    reason = text.replace("`", "").replace(" | ", " or ")
    return InvalidParameter(path or "body", f"{reason[:1].lower()}{reason[1:]}.")
