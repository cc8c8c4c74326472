"""OpenAI's chat completions, which many others speak too: Gemini, Mistral, DeepSeek, vLLM, Penstock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.api.requests import ChatFields, Message
from penstock.core.plan import FinishReason
from penstock.providers.api import bound_of, check_common, finish_of, read_event
from penstock.providers.errors import BrokenAnswer
from penstock.providers.refusals import broken_by, said_in
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
    "model_length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
    "content_filter": "content_filter",
}
_BROKEN = frozenset(("error", "abort", "insufficient_system_resource"))


class OpenAIChat:
    """`POST /v1/chat/completions` as OpenAI serves it: what a chat becomes there, and how its answer is read.

    Args:
        bound: the field of the most tokens of an answer; some know only the older one.
        tells_usage: whether it is asked to say what an answer has used; some do so unasked, and refuse the field.
    """

    path = "/chat/completions"

    def __init__(self, bound: str = "max_completion_tokens", *, tells_usage: bool = True) -> None:
        self._bound = bound
        self._options = {"stream_options": {"include_usage": True}} if tells_usage else {}

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
        # Without one it could use more than is reserved of its bounds.
        fields[self._bound] = bound_of(chat, most)
        if chat.tools:
            fields["tools"] = [_without_nulls(each) for each in msgspec.to_builtins(chat.tools)]
        return msgspec.json.encode(fields | {"stream": True, **self._options})

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
    function: _Function | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
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
        self._calls: dict[int, _Calls] = {}

    def read(self, data: bytes) -> Sequence[Step]:
        """What an event says. Raises BrokenAnswer."""
        if data.strip() == _DONE:
            self.complete = True
            return ()
        chunk = read_event(_decode, data)
        if chunk.error is not None:
            raise broken_by(said_in(data))
        steps = [step for choice in chunk.choices or () for step in self._steps(choice)]
        if chunk.usage is not None and (usage := _usage(chunk.usage)) is not None:
            steps.append(Step(usage=usage))
        # Some end their streams without a last event.
        self.complete = self.complete or any(step.finish for step in steps)
        return steps

    def _steps(self, choice: _Choice) -> list[Step]:
        delta, index, steps = choice.delta or _Delta(), choice.index, list[Step]()
        pieces: list[Piece] = []
        if thought := delta.reasoning_content or delta.reasoning:
            pieces.append(Reasoning(thought))
        if text := delta.content or delta.refusal:
            pieces.append(Content(text))
        if pieces:
            steps.append(Step(index, pieces))
        if delta.tool_calls:
            calls = self._calls.setdefault(index, _Calls(index))
            steps += [step for call in delta.tool_calls if (step := calls.add(call)) is not None]
        if choice.finish_reason:
            if index in self._calls:
                steps += self._calls.pop(index).rest()
            steps.append(Step(index, finish=finish_of(choice.finish_reason, _FINISHES, _BROKEN)))
        return steps


@dataclass(eq=False)
class _Begun:
    """A call of a tool that has begun.

    Attributes:
        number: its place among the calls of its answer.
        arguments: what has come of them.
    """

    number: int
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class _Calls:
    """The calls of tools in one choice.

    Clients get one after another, and some providers send several at a time. So the first is written as it comes, and
    the others once all have come.
    """

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self._all: list[_Begun] = []
        self._at: dict[int, _Begun] = {}

    def add(self, call: _Call) -> Step | None:
        """What is to be written of more of a call. Raises BrokenAnswer."""
        function = call.function or _Function()
        begun = self._all[-1] if call.index is None and self._all else self._at.get(call.index or 0)
        # Some number all calls alike, or none.
        other = begun is not None and call.id and call.id != begun.id
        begins = function.name and (begun is None or other or (call.index is None and not call.id))
        if begins:
            begun = self._begin(call, function.name or "")
        elif begun is None:
            raise BrokenAnswer("it goes on with a call of a tool that has not begun")
        text = function.arguments or ""
        if begun.number > 0:
            begun.arguments.append(text)
            return None
        return self._step(begun, text, begins=bool(begins))

    def rest(self) -> list[Step]:
        """What is left to be written of all calls, once their answer has ended."""
        return [self._step(each, "".join(each.arguments), begins=True) for each in self._all[1:]]

    def _begin(self, call: _Call, name: str) -> _Begun:
        number = len(self._all)
        begun = _Begun(number, call.id or f"call_{self._choice}_{number}", name)
        self._all.append(begun)
        self._at[call.index or 0] = begun
        return begun

    def _step(self, begun: _Begun, text: str, *, begins: bool) -> Step:
        pieces: list[Piece] = [CallStart(begun.number, begun.name)] if begins else []
        if text or not begins:
            pieces.append(CallArguments(begun.number, text))
        return Step(self._choice, pieces, call_id=begun.id if begins else "")


def _usage(told: _Usage) -> Usage | None:
    """None where it is not told. Some tell reasoning in the sum only."""
    prompt, output = told.prompt_tokens, told.completion_tokens
    if prompt is None or output is None:
        return None
    cached = 0 if told.prompt_tokens_details is None else told.prompt_tokens_details.cached_tokens or 0
    details = told.completion_tokens_details
    thought = 0 if details is None else details.reasoning_tokens or 0
    return Usage(prompt, min(cached, prompt), max(output, (told.total_tokens or 0) - prompt), thought)
