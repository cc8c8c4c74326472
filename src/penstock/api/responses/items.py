"""Items: what the input of a response consists of, and what earlier outputs are when they come back as input."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from penstock.api.fields import FieldReader, FieldRules, HintField, RefusedField
from penstock.api.message_builder import MessageBuilder
from penstock.api.parsing import check_count
from penstock.api.responses.references import KIND
from penstock.api.responses.tools import ToolNames
from penstock.api.rules import CACHE_MARK
from penstock.core.errors import InvalidParameter

ItemStatus = Literal["in_progress", "completed", "incomplete"]

_CALLER = RefusedField("tools are called directly only; leave it out.", ({"type": "direct"},))
ITEM_RULES: dict[str, FieldRules] = {
    "message": {"phase": HintField("Chat templates have no place for it.")},
    "function_call": {
        "async": RefusedField("is not supported; leave it out.", (False,)),
        "caller": _CALLER,
        "parsed_arguments": HintField("They are the arguments in another form."),
    },
    "function_call_output": {
        "caller": _CALLER,
        "name": HintField("call_id says which call it was."),
        "namespace": HintField("call_id says which call it was."),
    },
    "reasoning": {"encrypted_content": HintField("Only its server can read it; content has what is read here.")},
}
PART_RULES: FieldRules = {
    "annotations": HintField("They say where a text came from, which the model is not told.", ([],)),
    "logprobs": HintField("They say how likely a text was, which the model is not told.", ([],)),
    "parsed": HintField("It is the text in another form."),
    "prompt_cache_breakpoint": CACHE_MARK,
}
_PARTS = {
    "message": ("input_text", "output_text"),
    "function_call_output": ("input_text",),
    "reasoning": ("reasoning_text",),
}
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


class InputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    """Text of a message that is not the assistant's."""

    text: str


class OutputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """Text of the assistant's message."""

    text: str


class ReasoningText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"):
    """A part of reasoning, as the model wrote it."""

    text: str


class SummaryText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="summary_text"):
    """A part of a summary of reasoning."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """A message of the conversation, from either side."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | OutputText]
    id: str | None = None
    status: ItemStatus | None = None


class CallItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    """A call of a tool; `arguments` is JSON, or what there is of it where the response was cut off."""

    call_id: str
    name: str
    arguments: str = ""
    namespace: str | None | msgspec.UnsetType = msgspec.UNSET
    id: str | None = None
    status: ItemStatus | None = None


class CallOutputItem(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"
):
    """What a tool that was called has given."""

    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """Reasoning of an earlier output."""

    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    id: str | None = None
    status: ItemStatus | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem


class _Items(msgspec.Struct):
    input: list[Item]


def parse_items(given: str | list[Any], reader: FieldReader) -> list[Item]:
    """Typed items; raises InvalidParameter, naming the place in `input`."""
    if isinstance(given, str):
        return [MessageItem("user", [InputText(given)])]
    check_count("input", given)
    items = [_normal(item, f"input[{index}]", reader) for index, item in enumerate(given)]
    return reader.convert({"input": items}, _Items).input


def _normal(item: Any, path: str, reader: FieldReader) -> Any:
    """The item without what asks for nothing, its type made explicit."""
    if not isinstance(item, dict):
        return item
    item = dict(item)
    if "role" in item:
        item.setdefault("type", "message")
    kind = item.get("type")
    if not isinstance(kind, str):
        return item
    if kind not in ITEM_RULES:
        known = ", ".join((*ITEM_RULES, KIND))
        raise InvalidParameter(f"{path}.type", f"{kind[:40]!r} is not supported; only {known}.")
    reader.settle(item, ITEM_RULES[kind], f"{path}.")
    name = "output" if kind == "function_call_output" else "content"
    if kind in _PARTS and isinstance(item.get(name), list):
        parts = enumerate(item[name])
        item[name] = [_normal_part(part, _PARTS[kind], f"{path}.{name}[{index}]", reader) for index, part in parts]
    return item


def _normal_part(part: Any, kinds: Sequence[str], path: str, reader: FieldReader) -> Any:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "refusal" and "output_text" in kinds and part.keys() == {"type", "refusal"}:
        # It is what the assistant said.
        return {"type": "output_text", "text": part["refusal"]}
    if isinstance(kind, str) and kind not in kinds:
        raise InvalidParameter(f"{path}.type", f"{kind[:40]!r} is not supported here; only {', '.join(kinds)}.")
    part = dict(part)
    reader.settle(part, PART_RULES, f"{path}.")
    return part


def listed(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Items as they are stored and listed: each with an id, contents as lists of parts."""
    result = []
    for item in items:
        fields = msgspec.to_builtins(item)
        fields["id"] = item.id or f"{_PREFIXES[fields['type']]}_{uuid.uuid4().hex}"
        fields["status"] = item.status or "completed"
        if isinstance(fields.get("content"), str):
            kind = "output_text" if fields["role"] == "assistant" else "input_text"
            fields["content"] = [{"type": kind, "text": fields["content"]}]
        for part in fields.get("content") or ():
            if part["type"] == "output_text":
                part["annotations"] = []
        result.append(fields)
    return result


def add_items(conversation: MessageBuilder, items: Iterable[Item], names: ToolNames) -> None:
    """Put items into a conversation, calls under the names that the model knows.

    Raises InvalidParameter, naming the place in `input`.
    """
    for index, item in enumerate(items):
        path = f"input[{index}]"
        if isinstance(item, MessageItem):
            text = _text(item.content)
            if item.role == "assistant":
                conversation.answer(text)
            else:
                conversation.say(item.role, text)
        elif isinstance(item, CallItem):
            conversation.call(item.call_id, names.known(item.namespace or None, item.name), item.arguments)
        elif isinstance(item, ReasoningItem):
            conversation.think("\n".join(part.text for part in item.content or item.summary))
        elif not conversation.result(item.call_id, _text(item.output)):
            message = f"no function_call before it has the call_id {item.call_id[:40]!r}."
            raise InvalidParameter(f"{path}.call_id", message)


def _text(content: str | Sequence[InputText | OutputText]) -> str:
    """Several parts become lines, as in chats."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
