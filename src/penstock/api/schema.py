"""The fields of requests: which are accepted, their types, and which are refused by name."""

from typing import Any, Literal

import msgspec

from penstock.api.effort import Effort
from penstock.api.fields import FieldReader, Hint, Refused, Rules
from penstock.api.parsing import check_count, decode_object
from penstock.api.tools import NamedTool, ToolFields

ROLES = ("system", "developer", "user", "assistant", "tool")

_NOT_YET = "is not supported yet; leave it out."
_NO_TIERS_OF_CACHE = Hint(
    "Prefixes are cached for as long as there is room; cache_salt keeps them apart.", ({}, "in_memory")
)

# Fields of the OpenAI API and of vLLM that are not implemented.
RULES: Rules = {
    "audio": Refused("is not supported; only text is."),
    "chat_template": Refused("is not accepted from clients; the operator chooses the template with --chat-template."),
    "client_metadata": Hint("It is for the operator of a hosted API; metadata goes into the log."),
    "documents": Refused(_NOT_YET, ([],)),
    "function_call": Refused("is not supported; use tool_choice.", ("none",)),
    "functions": Refused("is not supported; use tools.", ([],)),
    "length_penalty": Refused("beam search is not supported; leave it out.", (1, 1.0)),
    "logits_processors": Refused("is not supported; leave it out.", ([],)),
    "modalities": Refused('only ["text"] is supported.', (["text"],)),
    "moderation": Refused("texts are not moderated; leave it out."),
    "prediction": Hint("It asks for speed; --speculative drafts without it."),
    "prompt_cache_key": Hint("The server finds common prefixes by itself; cache_salt keeps them apart."),
    "prompt_cache_options": _NO_TIERS_OF_CACHE,
    "prompt_cache_retention": _NO_TIERS_OF_CACHE,
    "safety_identifier": Hint("Nothing is moderated; user goes into the log."),
    "spaces_between_special_tokens": Refused("only true is supported.", (True,)),
    "store": Hint("Only /v1/responses stores answers.", (False,), lambda value: value is True, "must be a boolean."),
    "suffix": Refused("filling in the middle is not supported; leave it out.", ("",)),
    "truncate_prompt_tokens": Refused("prompts are never truncated; shorten the prompt instead."),
    "use_beam_search": Refused("beam search is not supported; leave it out.", (False,)),
    "verbosity": Hint("Models that are served have no such setting; ask for it in the prompt.", ("medium",)),
    "web_search_options": Refused("the server searches nothing; offer a tool of your own."),
}
_NOT_IN_COMPLETIONS = "is a field of /v1/chat/completions; leave it out."
COMPLETION_RULES: Rules = {
    **RULES,
    "parallel_tool_calls": Refused(_NOT_IN_COMPLETIONS),
    "reasoning_effort": Refused(_NOT_IN_COMPLETIONS),
    "tool_choice": Refused(_NOT_IN_COMPLETIONS, ("none",)),
    "tools": Refused(_NOT_IN_COMPLETIONS, ([],)),
}
EMBEDDING_RULES: Rules = {
    "safety_identifier": RULES["safety_identifier"],
}
# Rules for fields of messages; all others that Message lacks are the client's own, too.
MESSAGE_RULES: Rules = {
    "annotations": Hint("They say where a text came from, which the model is not told.", ([],)),
    "audio": Refused("is not supported; only text is."),
    "function_call": Refused("is not supported; use tool_calls."),
}

_CACHE_MARK = Hint("Prefixes are cached without marks; /v1/messages keeps what is marked.")
PART_RULES: Rules = {"cache_control": _CACHE_MARK, "prompt_cache_breakpoint": _CACHE_MARK}


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
    reasoning_effort: Effort | None = None
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
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    user: str | None = None


def parse_completion(body: bytes, reader: FieldReader) -> CompletionFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    reader.settle(fields, COMPLETION_RULES)
    return reader.convert(fields, CompletionFields)


def parse_embedding(body: bytes, reader: FieldReader) -> EmbeddingFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    reader.settle(fields, EMBEDDING_RULES)
    return reader.convert(fields, EmbeddingFields)


def parse_chat(body: bytes, reader: FieldReader) -> ChatFields:
    """Parse a body; raises RequestError, naming the field."""
    fields = decode_object(body)
    reader.settle(fields, RULES)
    settle_messages(fields, reader)
    return reader.convert(fields, ChatFields)


def settle_messages(fields: dict[str, Any], reader: FieldReader) -> None:
    """Take out of messages what is not for the model: clients keep records of their own there."""
    messages = fields.get("messages")
    check_count("messages", messages)
    for index, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict):
            continue
        path = f"messages[{index}]."
        reader.settle(message, MESSAGE_RULES, path)
        if isinstance(message.get("reasoning"), str) and message.get("reasoning_content") in (
            None,
            message["reasoning"],
        ):
            # vLLM's newer name for it. Beside another text it is the client's own, and told as ignored.
            message["reasoning_content"] = message.pop("reasoning")
        _drop_own(message, Message, path, reader)
        for number, part in _objects(message.get("content")):
            reader.settle(part, PART_RULES, f"{path}content[{number}].")
        for number, call in _objects(message.get("tool_calls")):
            place = f"{path}tool_calls[{number}]."
            _drop_own(call, ToolCall, place, reader)
            if isinstance(call.get("function"), dict):
                _drop_own(call["function"], FunctionCall, f"{place}function.", reader)


def _drop_own(fields: dict[str, Any], kind: type[msgspec.Struct], path: str, reader: FieldReader) -> None:
    """Take out what the type of an object in the history does not have: records of the client's or of its library."""
    for name in [name for name in fields if name not in kind.__struct_fields__]:
        if fields.pop(name) is not None:
            reader.ignore(path + name)


def _objects(items: Any) -> list[tuple[int, dict[str, Any]]]:
    """The objects in a list, and their places."""
    return [pair for pair in enumerate(items if isinstance(items, list) else ()) if isinstance(pair[1], dict)]
