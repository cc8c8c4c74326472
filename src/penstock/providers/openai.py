"""OpenAI's chat completions, which many others speak too: Gemini, Mistral, DeepSeek, vLLM, Penstock."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.api.requests import ChatFields, Message
from penstock.core.plan import FinishReason
from penstock.providers.api import check_common
from penstock.providers.errors import BrokenAnswer
from penstock.providers.told import Step, Usage
from penstock.text.pieces import CallArguments, CallStart, Content, Piece, Reasoning

_DONE = b"[DONE]"
# Fields that go on as they are.
_SAME = (
    *("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty", "response_format"),
    *("tool_choice", "parallel_tool_calls", "reasoning_effort"),
)
_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
    "content_filter": "content_filter",
}


class OpenAIChat:
    """`POST /v1/chat/completions` as OpenAI serves it: what a chat becomes there, and how its answer is read."""

    path = "/chat/completions"

    def check(self, chat: ChatFields) -> None:
        """Raise InvalidParameter for what it cannot do."""
        check_common(chat)

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """The key, as it is shown."""
        return [(b"authorization", b"Bearer " + key.encode())]

    def body(self, chat: ChatFields, model: str, most: int) -> bytes:
        """What it is asked: always for a stream, so that a client who leaves ends it. Who asks is not told."""
        fields: dict[str, Any] = {"model": model, "messages": [_message(each) for each in chat.messages]}
        fields |= {name: value for name in _SAME if (value := getattr(chat, name)) is not None}
        bounds = [each for each in (chat.max_tokens, chat.max_completion_tokens) if each is not None]
        if bounds:
            fields["max_completion_tokens"] = min(bounds)
        if chat.tools:
            fields["tools"] = [_without_nulls(each) for each in msgspec.to_builtins(chat.tools)]
        return msgspec.json.encode(fields | {"stream": True, "stream_options": {"include_usage": True}})

    def reader(self) -> "OpenAIReader":
        """One for each answer, since events refer to those before them."""
        return OpenAIReader()


def _message(message: Message) -> dict[str, Any]:
    """What its maker's library may have put beside it, and what only own machines read, stays here."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("name", "tool_call_id", "refusal"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": _text(call)}}
            for call in message.tool_calls
        ]
    return fields


def _text(call: Any) -> str:
    given = call.function.arguments
    return given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()


def _without_nulls(tool: dict[str, Any]) -> dict[str, Any]:
    return tool | {"function": {name: value for name, value in tool["function"].items() if value is not None}}


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function = _Function()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class OpenAIReader:
    """Reads one answer.

    Attributes:
        complete: it has come to its end.
    """

    def __init__(self) -> None:
        self.complete = False
        # The calls of each choice: which began last, as the provider and as the answer numbers it.
        self._calls: dict[int, tuple[int, int]] = {}

    def read(self, data: bytes) -> Sequence[Step]:
        """What an event says. Raises BrokenAnswer."""
        if data.strip() == _DONE:
            self.complete = True
            return ()
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BrokenAnswer(f"an event of it cannot be read: {error}") from None
        if chunk.error is not None:
            raise BrokenAnswer(f"it ended its answer with an error: {told_error(data)}")
        steps = [step for choice in chunk.choices for step in self._steps(choice)]
        if chunk.usage is not None:
            steps.append(Step(usage=_usage(chunk.usage)))
        # Some end their streams without a last event.
        self.complete = self.complete or any(step.finish for step in steps)
        return steps

    def _steps(self, choice: _Choice) -> list[Step]:
        delta, index, steps = choice.delta, choice.index, []
        pieces: list[Piece] = []
        if thought := delta.reasoning_content or delta.reasoning:
            pieces.append(Reasoning(thought))
        if text := delta.content or delta.refusal:
            pieces.append(Content(text))
        if pieces:
            steps.append(Step(index, pieces))
        for call in delta.tool_calls or ():
            steps.append(self._call(index, call))
        if choice.finish_reason:
            steps.append(Step(index, finish=_FINISHES.get(choice.finish_reason, "stop")))
        return steps

    def _call(self, index: int, call: _Call) -> Step:
        theirs, ours = self._calls.get(index, (-1, -1))
        at = call.index if call.index is not None else theirs + bool(call.function.name)
        if at == theirs:
            return Step(index, [CallArguments(ours, call.function.arguments or "")])
        if not call.function.name:
            raise BrokenAnswer("it goes on with a call of a tool behind which another one has begun")
        self._calls[index] = at, ours + 1
        pieces: list[Piece] = [CallStart(ours + 1, call.function.name)]
        if call.function.arguments:
            pieces.append(CallArguments(ours + 1, call.function.arguments))
        return Step(index, pieces, call_id=call.id or f"call_{index}_{ours + 1}")


def _usage(told: _Usage) -> Usage:
    cached = 0 if told.prompt_tokens_details is None else told.prompt_tokens_details.cached_tokens or 0
    details = told.completion_tokens_details
    thought = 0 if details is None else details.reasoning_tokens or 0
    return Usage(told.prompt_tokens, min(cached, told.prompt_tokens), told.completion_tokens, thought)


class _Message(msgspec.Struct, frozen=True):
    message: str


class _Error(msgspec.Struct, frozen=True):
    error: _Message | str


def told_error(body: bytes) -> str:
    """What an error's body says, in the forms that OpenAI's, Anthropic's and others' have; its beginning where none."""
    for kind in (_Error, _Message):
        try:
            found: Any = msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        inner = found.error if isinstance(found, _Error) else found
        return (inner if isinstance(inner, str) else inner.message)[:500]
    return body[:200].decode(errors="replace")
