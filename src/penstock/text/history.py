"""Conversations as clients send them, in the shapes that a chat template keeps.

What a template takes as it is stays as it is. Nothing that was said, called or answered is lost on the way: what a
template would leave out or refuse in one shape is given to it in another, by what `TemplateCapabilities` says.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.core.errors import InvalidParameter
from penstock.text.template_capabilities import TemplateCapabilities

Message = dict[str, Any]

# Between texts that were messages of their own.
_BETWEEN = "\n\n"
# Names of a message's reasoning, the first is the usual one. Some templates read the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
# Under it stand arguments that are no object, where a template takes nothing but objects.
_RAW = "arguments"
_SHORT_ID = 9


def adapted(messages: Sequence[Mapping[str, Any]], able: TemplateCapabilities) -> list[Message]:
    """A conversation in the shapes that a template keeps. Raises InvalidParameter where a content cannot be given.

    `messages` are those of OpenAI's chats; arguments of calls may be objects too.
    """
    conversation = _with_ids([_plain(message) for message in messages])
    conversation = _system_in_place(conversation, able)
    if not able.parallel_calls:
        conversation = _one_call_each(conversation)
    conversation = [shaped for message in conversation for shaped in _calls_shaped(message, able)]
    if not able.tool_role:
        conversation = _results_as_user(conversation)
    elif not able.user_after_result:
        conversation = _results_answered(conversation)
    for index, message in enumerate(conversation):
        message["content"] = _content(message, able, f"messages[{index}].content")
        if message["content"] is _NOTHING:
            del message["content"]
    return conversation


def text_of(content: Any, path: str = "content") -> str:
    """A content's text; several parts become lines. Raises InvalidParameter where a part is no text."""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content or ()):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise InvalidParameter(f"{path}[{index}]", "is not a text, which is all that the chat template takes here.")
        texts.append(text)
    return "\n".join(texts)


class _Nothing:
    """Stands for a content that is not there at all."""


_NOTHING = _Nothing()


def _plain(message: Mapping[str, Any]) -> Message:
    """A copy without what is null, its reasoning under the names that templates read."""
    copy = {name: value for name, value in message.items() if value is not None}
    reasoning = next((copy[name] for name in _REASONING if name in copy), None)
    if reasoning is not None:
        copy |= {"reasoning_content": reasoning, "thinking": copy.get("thinking", reasoning)}
    if not copy.get("tool_calls", True):
        # Templates ask whether there is a list, and not what is in it.
        del copy["tool_calls"]
    return copy


class _Calls:
    """The calls that have no result yet. Looking for one takes no longer, however many there are."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[str, str | None]] = {}
        self._by_id: dict[str, deque[int]] = {}
        self._turn: deque[int] = deque()
        self._count = 0

    def add(self, calls: Sequence[Message]) -> None:
        """One message's calls. An id may have come before: from now on it means these."""
        self._turn = deque()
        by_id: dict[str, deque[int]] = {}
        for call in calls:
            identifier = call["id"] = call.get("id") or f"call_{self._count}"
            function = call.get("function")
            name = function.get("name") if isinstance(function, Mapping) else None
            self._waiting[self._count] = (identifier, name)
            self._turn.append(self._count)
            by_id.setdefault(identifier, deque()).append(self._count)
            self._count += 1
        self._by_id |= by_id

    def answer(self, identifier: str | None) -> tuple[str, str | None] | None:
        """Id and name of the call that a result belongs to; without an id that is the first one that waits."""
        places = self._turn if identifier is None else self._by_id.get(identifier, deque())
        while places:
            found = self._waiting.pop(places.popleft(), None)
            if found is not None:
                return found
        return None


def _with_ids(messages: list[Message]) -> list[Message]:
    """The messages with an id for each call, and for each result the id and the name of the call that it answers."""
    waiting = _Calls()
    for message in messages:
        if message.get("tool_calls"):
            message["tool_calls"] = [dict(call) for call in message["tool_calls"]]
            waiting.add(message["tool_calls"])
        elif message.get("role") == "tool":
            identifier, name = waiting.answer(message.get("tool_call_id")) or (None, None)
            if identifier is not None:
                message["tool_call_id"] = identifier
            if name is not None:
                message.setdefault("name", name)
    return messages


def _system_in_place(messages: list[Message], able: TemplateCapabilities) -> list[Message]:
    """Instructions where the template keeps them. Those of developers are the system's where it knows no developers."""
    instruct = [message for message in messages if message.get("role") in ("developer", "system")]
    alone = instruct == messages[:1]
    if able.developer == "unknown" or (able.developer == "alone" and not alone):
        messages = _developers_as_system(messages)
    if able.system == "anywhere":
        return messages
    leading = 0
    while leading < len(messages) and messages[leading].get("role") == "system":
        leading += 1
    if able.system == "leading":
        later = [message for message in messages[leading:] if message.get("role") == "system"]
        first = max(leading - 1, 0)
    else:
        later = [message for message in messages if message.get("role") == "system"]
        first = leading = 0
    if not later:
        return messages
    others = [message for message in messages[leading:] if message.get("role") != "system"]
    joined = _joined([*messages[first:leading], *later], "system")
    if able.system != "none":
        return [*messages[:first], joined, *others]
    # The role is not there at all, and the first who says something is the user.
    where = next((index for index, message in enumerate(others) if message.get("role") == "user"), None)
    if where is None:
        return [{**joined, "role": "user"}, *others]
    others[where] = _joined([joined, others[where]], "user")
    return others


def _developers_as_system(messages: list[Message]) -> list[Message]:
    """Developers' messages as the system's; right behind one of these, as a part of it."""
    runs: list[list[Message]] = []
    for message in messages:
        if message.get("role") == "developer" and runs and runs[-1][0].get("role") in ("developer", "system"):
            runs[-1].append(message)
        else:
            runs.append([message])
    return [_joined(run, "system") if run[0].get("role") == "developer" or len(run) > 1 else run[0] for run in runs]


def _joined(messages: Sequence[Message], role: str) -> Message:
    """One message that says what all of them say."""
    if len(messages) == 1:
        return {**messages[0], "role": role}
    fields = {name: value for message in messages for name, value in message.items()}
    return {**fields, "role": role, "content": _BETWEEN.join(text_of(message.get("content")) for message in messages)}


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The messages, those of several calls as one for each call, with its result behind it."""
    found: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        found.append(message)
        place += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            continue
        found.pop()
        results: dict[str, deque[Message]] = {}
        while place < len(messages) and messages[place].get("role") == "tool":
            results.setdefault(messages[place].get("tool_call_id", ""), deque()).append(messages[place])
            place += 1
        for index, call in enumerate(calls):
            found.append({**(message if index == 0 else {"role": "assistant"}), "tool_calls": [call]})
            if results.get(call["id"]):
                found.append(results[call["id"]].popleft())
        found += [result for waiting in results.values() for result in waiting]
    return found


def _calls_shaped(message: Message, able: TemplateCapabilities) -> Iterator[Message]:
    """The message, or the two of them, in which a call is kept."""
    if message.get("role") == "tool":
        if able.short_ids and "tool_call_id" in message:
            message = {**message, "tool_call_id": _short(message["tool_call_id"])}
        yield message
        return
    if "tool_calls" not in message:
        yield message
        return
    message = {**message, "tool_calls": [_call(call, able) for call in message["tool_calls"]]}
    content = message.get("content")
    if able.calls == "none":
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.pop("tool_calls")]
        yield {**message, "content": "\n".join([*([text] if (text := text_of(content)) else []), *calls])}
    elif not content:
        yield {**message, "content": _no_content(content, able)}
    elif able.calls == "apart":
        calls = message.pop("tool_calls")
        yield message
        yield {"role": "assistant", "content": _no_content(None, able), "tool_calls": calls}
    else:
        yield message


def _no_content(content: Any, able: TemplateCapabilities) -> Any:
    form = able.empty_content if content == "" else able.no_content
    return {"missing": _NOTHING, "null": None, "empty": ""}[form]


def _call(call: Mapping[str, Any], able: TemplateCapabilities) -> Message:
    function = dict(call.get("function") or {})
    function["arguments"] = _arguments(function.get("arguments"), able)
    identifier = _short(call["id"]) if able.short_ids else call["id"]
    return {**call, "id": identifier, "type": call.get("type") or "function", "function": function}


def _arguments(given: Any, able: TemplateCapabilities) -> Any:
    """Arguments in the form that the template takes. What is no object is kept as it was written."""
    if isinstance(given, str):
        value = parsed_object(given)
        text = given if given.strip() else "{}"
    else:
        value = dict(given or {}) if isinstance(given, Mapping) or given is None else None
        text = json.dumps({} if given is None else given, ensure_ascii=False)
    if able.arguments == "text":
        return text
    if value is not None:
        return value
    return text if able.cut_arguments else {_RAW: text}


def parsed_object(text: str) -> dict[str, Any] | None:
    """The object that arguments are; None where they were cut, or are no object. A call without any has none."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _short(identifier: str) -> str:
    """Nine letters and digits: the id, or what always stands for it."""
    if len(identifier) == _SHORT_ID and identifier.isascii() and identifier.isalnum():
        return identifier
    return hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:_SHORT_ID]


def _results_as_user(messages: list[Message]) -> list[Message]:
    """Results of tools as what the user says, with what the user says next to them."""
    runs: list[list[Message]] = []
    joins = False
    for message in messages:
        is_result = message.get("role") == "tool"
        user = {"role": "user", "content": message.get("content", "")} if is_result else message
        if runs and (is_result or joins) and user.get("role") == runs[-1][0].get("role") == "user":
            runs[-1].append(user)
        else:
            runs.append([user])
        joins = is_result or (joins and user.get("role") == "user")
    return [_joined(run, "user") if len(run) > 1 else run[0] for run in runs]


def _results_answered(messages: list[Message]) -> list[Message]:
    """The messages, with an empty answer where the user speaks right behind a call or its result."""
    found: list[Message] = []
    for message in messages:
        called = bool(found) and (found[-1].get("role") == "tool" or "tool_calls" in found[-1])
        if message.get("role") == "user" and called:
            found.append({"role": "assistant", "content": ""})
        found.append(message)
    return found


def _content(message: Message, able: TemplateCapabilities, path: str) -> Any:
    """The content in the form that the template takes for its role."""
    role, content = message.get("role"), message.get("content", _NOTHING)
    if content is _NOTHING and role == "assistant" and "tool_calls" not in message:
        content = ""
    if isinstance(content, list) and role not in able.parts:
        content = text_of(content, path)
    if isinstance(content, str) and role in able.only_parts:
        return [{"type": "text", "text": content}]
    return content
