"""Messages of chats, checked, as the encoder takes them. What shapes the model's template wants is its matter."""

import json
from collections.abc import Sequence
from typing import Any

from penstock.api.parsing import check_count
from penstock.api.requests import ROLES, Message, ToolCall
from penstock.core.checks import check_characters
from penstock.core.errors import InvalidParameter
from penstock.text.history import parsed_object, text_of

# Kinds of parts, and the field that has their text. A refusal is what the assistant said.
_PARTS = {"text": "text", "refusal": "refusal"}


def conversation_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with the fields that chat templates know. Raises InvalidParameter, naming the place."""
    if not messages:
        raise InvalidParameter("messages", "is empty; send at least one message.")
    check_count("messages", messages)
    called = False
    conversation = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        _check_role(message, path, called=called)
        called = called or bool(message.tool_calls)
        conversation.append(_message(message, path))
    return conversation


def said_in(message: Message) -> str:
    """The text of a message."""
    return text_of(_message(message, "messages").get("content"))


def _message(message: Message, path: str) -> dict[str, Any]:
    result: dict[str, Any] = {"role": message.role}
    if message.content is not None:
        result["content"] = _content(message, path)
    elif message.role == "tool":
        result["content"] = ""
    if message.refusal is not None:
        result["content"] = _with_refusal(result.get("content"), message.refusal)
    for name in ("name", "reasoning_content", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            result[name] = value
    if message.tool_calls:
        result["tool_calls"] = [
            _call(call, f"{path}.tool_calls[{index}].function.arguments")
            for index, call in enumerate(message.tool_calls)
        ]
    return result


def _call(call: ToolCall, place: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False) if arguments else ""
    value = parsed_object(arguments)
    # Unlike the body's reader, that of arguments lets through what is half of a character.
    if value is not None and "\\u" in arguments:
        check_characters(place, json.dumps(value, ensure_ascii=False))
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _check_role(message: Message, path: str, *, called: bool) -> None:
    """Raise InvalidParameter where a message has what others have, or lacks what its role needs."""
    role = message.role
    if role not in ROLES:
        raise InvalidParameter(f"{path}.role", f"{role[:40]!r} is not one of {', '.join(ROLES)}.")
    answered = bool(message.tool_calls) or message.reasoning_content is not None or message.refusal is not None
    # A tool may have nothing to say.
    if message.content is None and role != "tool" and not (role == "assistant" and answered):
        raise InvalidParameter(f"{path}.content", "is missing.")
    if role == "tool":
        if message.tool_call_id is None and not called:
            raise InvalidParameter(f"{path}.tool_call_id", "is missing, and no call comes before it.")
    elif message.tool_call_id is not None:
        raise InvalidParameter(f"{path}.tool_call_id", f"is for messages of the role tool, not {role}.")
    if role != "assistant":
        for name in ("tool_calls", "reasoning_content", "refusal"):
            if getattr(message, name):
                raise InvalidParameter(f"{path}.{name}", f"is for messages of the role assistant, not {role}.")


def _content(message: Message, path: str) -> str | list[dict[str, Any]]:
    """The text, or its parts, each with nothing but its text."""
    if not isinstance(message.content, list):
        return message.content or ""
    parts = []
    for index, part in enumerate(message.content):
        place = f"{path}.content[{index}]"
        kind = part.get("type")
        name = _PARTS.get(kind) if isinstance(kind, str) else None
        if name is None or (kind == "refusal" and message.role != "assistant"):
            raise InvalidParameter(f"{place}.type", f"{str(kind)[:40]!r} is not 'text'; only text is supported.")
        if not isinstance(part.get(name), str):
            raise InvalidParameter(f"{place}.{name}", "must be a string.")
        other = next((each for each in part if each not in ("type", name)), None)
        if other is not None:
            raise InvalidParameter(f"{place}.{other[:40]}", "is not a field of a text; leave it out.")
        parts.append({"type": "text", "text": part[name]})
    return parts


def _with_refusal(content: Any, refusal: str) -> Any:
    """An answer that was refused has its reason in the place of a content, or beside it."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": refusal}]
    return f"{content}\n{refusal}" if content else refusal
