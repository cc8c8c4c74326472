"""Bodies of OpenAI's API as typed fields, and which of its fields are hints or refused by name."""

from typing import Any

import msgspec

from penstock.api.fields import FieldReader, FieldRules, HintField, RefusedField
from penstock.api.parsing import check_count, decode_object
from penstock.api.requests import ChatFields, CompletionFields, EmbeddingFields, FunctionCall, Message, ToolCall
from penstock.api.rules import CACHE_MARK, COMMON_RULES

_NOT_YET = "is not supported yet; leave it out."

# Fields of the OpenAI API and of vLLM that are not implemented.
RULES: FieldRules = {
    "audio": RefusedField("is not supported; only text is."),
    "chat_template": RefusedField(
        "is not accepted from clients; the operator chooses the template with --chat-template."
    ),
    "client_metadata": COMMON_RULES["client_metadata"],
    "documents": RefusedField(_NOT_YET, ([],)),
    "function_call": RefusedField("is not supported; use tool_choice.", ("none",)),
    "functions": RefusedField("is not supported; use tools.", ([],)),
    "logits_processors": RefusedField("is not supported; leave it out.", ([],)),
    "modalities": RefusedField('only ["text"] is supported.', (["text"],)),
    "moderation": COMMON_RULES["moderation"],
    "prediction": HintField("It asks for speed; --speculative drafts without it."),
    "prompt_cache_options": COMMON_RULES["prompt_cache_options"],
    "safety_identifier": COMMON_RULES["safety_identifier"],
    "spaces_between_special_tokens": RefusedField("only true is supported.", (True,)),
    "store": HintField(
        "Only /v1/responses stores answers.", (False,), lambda value: value is True, "must be a boolean."
    ),
    "suffix": RefusedField("filling in the middle is not supported; leave it out.", ("",)),
    "truncate_prompt_tokens": RefusedField("prompts are never truncated; shorten the prompt instead."),
    "verbosity": COMMON_RULES["verbosity"],
    "web_search_options": RefusedField("the server searches nothing; offer a tool of your own."),
}
_NOT_IN_COMPLETIONS = "is a field of /v1/chat/completions; leave it out."
COMPLETION_RULES: FieldRules = {
    **RULES,
    "parallel_tool_calls": RefusedField(_NOT_IN_COMPLETIONS),
    "reasoning_effort": RefusedField(_NOT_IN_COMPLETIONS),
    "tool_choice": RefusedField(_NOT_IN_COMPLETIONS, ("none",)),
    "tools": RefusedField(_NOT_IN_COMPLETIONS, ([],)),
}
EMBEDDING_RULES: FieldRules = {
    "safety_identifier": COMMON_RULES["safety_identifier"],
}
# Rules for fields of messages; all others that Message lacks are the client's own, too.
MESSAGE_RULES: FieldRules = {
    "annotations": HintField("They say where a text came from, which the model is not told.", ([],)),
    "audio": RefusedField("is not supported; only text is."),
    "function_call": RefusedField("is not supported; use tool_calls."),
}

PART_RULES: FieldRules = {"cache_control": CACHE_MARK, "prompt_cache_breakpoint": CACHE_MARK}


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
