"""Anthropic's messages."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.api.requests import ChatFields, Message, ToolCall
from penstock.api.tools import NamedTool
from penstock.core.errors import InvalidParameter
from penstock.core.plan import FinishReason
from penstock.providers.api import bound_of, check_common, finish_of, read_event, refuse
from penstock.providers.errors import BrokenAnswer
from penstock.providers.refusals import Said, broken_by
from penstock.providers.told import Step, Usage
from penstock.text.pieces import CallArguments, CallStart, Content, Reasoning

VERSION = b"2023-06-01"
# What it does not have, with the values that ask for nothing.
_NOT_THERE: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "seed": (),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_FINISHES: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
# A turn that is paused wants another request.
_BROKEN = frozenset(("pause_turn",))


class AnthropicMessages:
    """`POST /v1/messages` as Anthropic serves it: what a chat becomes there, and how its answer is read."""

    path = "/messages"

    def check(self, chat: ChatFields) -> None:
        """Raise InvalidParameter for what it cannot do."""
        check_common(chat)
        refuse(chat, _NOT_THERE, "the provider of this model")
        if chat.temperature is not None and chat.temperature > 1:
            raise InvalidParameter("temperature", "the provider of this model takes 0 to 1.")
        kind = (chat.response_format or {}).get("type", "text")
        if kind not in ("text", "json_schema"):
            raise InvalidParameter("response_format", "the provider of this model knows JSON schemas only.")
        if chat.reasoning_effort not in (None, "none") and any(each.role == "tool" for each in chat.messages):
            raise InvalidParameter(
                "reasoning_effort", "the provider of this model wants its signed reasoning beside calls of tools back."
            )
        for index, message in enumerate(chat.messages):
            _check_message(f"messages[{index}]", message)
        if chat.messages and chat.messages[-1].role == "assistant":
            raise InvalidParameter(
                "messages", "ends with one of the assistant, which the provider of this model would go on with."
            )

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """The key, as it is shown, and the version of the API."""
        return [(b"x-api-key", key.encode()), (b"anthropic-version", VERSION)]

    def body(self, chat: ChatFields, model: str, most: int) -> bytes:
        """What it is asked: always for a stream, so that a client who leaves ends it. Who asks is not told."""
        fields: dict[str, Any] = {
            "model": model,
            "max_tokens": bound_of(chat, most),
            "messages": _turns(chat.messages),
            "stream": True,
        }
        if system := [_text(each) for each in chat.messages if each.role in ("system", "developer")]:
            fields["system"] = "\n".join(system)
        for name in ("temperature", "top_p"):
            if (value := getattr(chat, name)) is not None:
                fields[name] = value
        if chat.stop:
            fields["stop_sequences"] = [chat.stop] if isinstance(chat.stop, str) else chat.stop
        if chat.tools:
            fields["tools"] = [_tool(each.function) for each in chat.tools]
            fields["tool_choice"] = _choice(chat)
        config: dict[str, Any] = {}
        if chat.reasoning_effort not in (None, "none"):
            config["effort"] = chat.reasoning_effort
        if chat.response_format is not None and chat.response_format.get("type") == "json_schema":
            config["format"] = {"type": "json_schema", "schema": chat.response_format["json_schema"]["schema"]}
        return msgspec.json.encode(fields | ({"output_config": config} if config else {}))

    def reader(self) -> "AnthropicReader":
        """One for each answer, since events refer to those before them."""
        return AnthropicReader()


def _check_message(place: str, message: Message) -> None:
    if message.role not in ("system", "developer", "user", "assistant", "tool"):
        raise InvalidParameter(f"{place}.role", f"{message.role[:40]!r} is no role.")
    if isinstance(message.content, list) and any(part.get("type") != "text" for part in message.content):
        raise InvalidParameter(f"{place}.content", "only texts go to the provider of this model.")
    # Of a tool, it says no more than the call that the result is of.
    if message.name is not None and message.role != "tool":
        raise InvalidParameter(f"{place}.name", "does not go to the provider of this model; leave it out.")
    for call in message.tool_calls or ():
        _input(call, place)


def _text(message: Message) -> str:
    content = message.content or ""
    text = content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)
    return "\n".join(each for each in (text, message.refusal) if each)


def _input(call: ToolCall, place: str) -> dict[str, Any]:
    given = call.function.arguments
    if isinstance(given, dict):
        return given
    try:
        return msgspec.json.decode(given or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise InvalidParameter(
            f"{place}.tool_calls", "arguments that are no JSON object cannot go to the provider of this model."
        ) from None


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages of one role that follow each other are one; results of tools are the user's, and come first there."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role in ("system", "developer"):
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks: list[dict[str, Any]] = []
        text = _text(message)
        if message.role == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": message.tool_call_id, "content": text})
        elif text:
            blocks.append({"type": "text", "text": text})
        for call in message.tool_calls or ():
            name = call.function.name
            blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": _input(call, "messages")})
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    return turns


def _tool(function: Any) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        tool["description"] = function.description
    if function.strict:
        tool["strict"] = True
    return tool | {"input_schema": function.parameters or {"type": "object", "properties": {}}}


def _choice(chat: ChatFields) -> dict[str, Any]:
    given = chat.tool_choice or "auto"
    choice: dict[str, Any]
    if isinstance(given, NamedTool):
        choice = {"type": "tool", "name": given.function.name}
    else:
        choice = {"type": _CHOICES[given]}
    if chat.parallel_tool_calls is False and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Started(msgspec.Struct, frozen=True):
    usage: _Usage = _Usage()


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    id: str = ""
    name: str = ""


class _Delta(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    type: str = ""


class _Event(msgspec.Struct, frozen=True):
    type: str
    message: _Started = _Started()
    content_block: _Block = _Block()
    delta: _Delta = _Delta()
    usage: _Usage | None = None
    error: _Error = _Error()


_decode = msgspec.json.Decoder(_Event).decode


class AnthropicReader:
    """Reads one answer.

    Attributes:
        complete: it has come to its end.
    """

    def __init__(self) -> None:
        self.complete = False
        self._calls = -1
        # Whether the block that is open is a call, none of whose input has come.
        self._empty_call = False
        self._usage = Usage(0, 0, 0)

    def read(self, data: bytes) -> Sequence[Step]:
        """What an event says. Raises BrokenAnswer."""
        event = read_event(_decode, data)
        match event.type:
            case "error":
                raise broken_by(Said(event.error.message[:500], (event.error.type,)))
            case "message_start":
                return [Step(usage=self._counted(event.message.usage))]
            case "content_block_start":
                return self._begin(event.content_block)
            case "content_block_delta":
                return self._more(event.delta)
            case "content_block_stop" if self._empty_call:
                self._empty_call = False
                return [Step(pieces=[CallArguments(self._calls, "{}")])]
            case "message_delta":
                reason, usage = event.delta.stop_reason, self._counted(event.usage or _Usage())
                finish = None if reason is None else finish_of(reason, _FINISHES, _BROKEN)
                return [Step(finish=finish, stop=event.delta.stop_sequence, usage=usage)]
            case "message_stop":
                self.complete = True
        return ()

    def _begin(self, block: _Block) -> Sequence[Step]:
        if block.type != "tool_use":
            return ()
        if not block.name:
            raise BrokenAnswer("it calls a tool without a name")
        self._calls, self._empty_call = self._calls + 1, True
        return [Step(pieces=[CallStart(self._calls, block.name)], call_id=block.id or f"toolu_{self._calls}")]

    def _more(self, delta: _Delta) -> Sequence[Step]:
        if delta.text:
            return [Step(pieces=[Content(delta.text)])]
        if delta.thinking:
            return [Step(pieces=[Reasoning(delta.thinking)])]
        if delta.partial_json:
            if self._calls < 0:
                raise BrokenAnswer("it goes on with a call of a tool that has not begun")
            self._empty_call = False
            return [Step(pieces=[CallArguments(self._calls, delta.partial_json)])]
        return ()

    def _counted(self, told: _Usage) -> Usage | None:
        """All that was told of the message so far: of the prompt first, of the answer last; None where nothing was."""
        before, cached = self._usage, told.cache_read_input_tokens or 0
        prompt = (told.input_tokens or 0) + cached + (told.cache_creation_input_tokens or 0)
        output = told.output_tokens or 0
        self._usage = Usage(max(before.prompt, prompt), max(before.cached, cached), max(before.output, output))
        return self._usage if self._usage.prompt else None
