"""How a choice tells its answer: as a text, or as the message of a chat; in parts as its segments grow, or whole."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.api.segments import Gain, Segment, Segments

_encode = msgspec.json.Encoder().encode
_ROLE = b'"role":"assistant",'


class ChoiceForm(Protocol):
    """Writes one choice, either in parts or whole.

    Attributes:
        nothing: the part that an event has which tells nothing new of the answer.
    """

    nothing: bytes

    def parts(self, gains: Sequence[Gain], *, first: bool, ended: bool) -> list[bytes]:
        """What each event has of the answer, by what its segments gained; the last may tell of the end beside it."""

    def more(self, text: str) -> bytes:
        """What an event has that tells nothing but more text, behind a first one."""

    def whole(self, segments: Segments) -> dict[str, Any]:
        """The answer as whole responses have it, for JSON."""


class TextForm:
    """`{"text"}`, of completions, with the prompt before it where that is echoed."""

    nothing = b',"text":""'

    def __init__(self, echo: str) -> None:
        self._echo = echo

    def parts(self, gains: Sequence[Gain], *, first: bool, ended: bool) -> list[bytes]:
        """What each event has of the answer, by what its segments gained."""
        text = gains[0][1] if len(gains) == 1 else "".join([gained for _, gained in gains])
        if first:
            text = self._echo + text
        return [self.more(text)] if text else []

    def more(self, text: str) -> bytes:
        """What an event has that tells nothing but more text."""
        return b',"text":' + _encode(text)

    def whole(self, segments: Segments) -> dict[str, Any]:
        """The answer as whole responses have it, for JSON."""
        return {"text": self._echo + segments.text("text")}


class MessageForm:
    """`{"message"}`, of chats; in streams `{"delta"}`."""

    def __init__(self, *, parsed: bool) -> None:
        """`parsed`: whether there may be more than content."""
        # Calls and reasoning alone have no content, and what is not known yet may be such.
        self._unknown = b'"content":null' if parsed else b'"content":""'
        self.nothing = b',"delta":{}' if parsed else b',"delta":{"content":""}'
        self._told = False
        self._calls: list[Segment] = []

    def parts(self, gains: Sequence[Gain], *, first: bool, ended: bool) -> list[bytes]:
        """The deltas, one for each gain, the first of all with the role."""
        deltas = [self._delta(segment, text) for segment, text in gains]
        self._told = self._told or bool(deltas)
        if ended and not self._told:
            deltas = [b'"content":""']
        if first:
            opening = deltas[0] if deltas else self._unknown
            deltas[:1] = [_ROLE + (b"" if opening.startswith(b'"content"') else b'"content":null,') + opening]
        return [b',"delta":{' + delta + b"}" for delta in deltas]

    def more(self, text: str) -> bytes:
        """What an event has that tells nothing but more text."""
        self._told = True
        return b',"delta":{"content":' + _encode(text) + b"}"

    def whole(self, segments: Segments) -> dict[str, Any]:
        """The message, a dictionary for JSON."""
        content, reasoning = segments.text("text"), segments.text("reasoning")
        calls = [segment for segment in segments.segments if segment.kind == "call"]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if not content and (reasoning or calls):
            message["content"] = None
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [_call(segment, segment.text) for segment in calls]
        return {"message": message}

    def _delta(self, segment: Segment, text: str) -> bytes:
        if segment.kind == "text":
            return b'"content":' + _encode(text)
        if segment.kind == "reasoning":
            return b'"reasoning_content":' + _encode(text)
        if not self._calls or self._calls[-1] is not segment:
            # A call begins with its name.
            self._calls.append(segment)
            call = {"index": len(self._calls) - 1, **_call(segment, text)}
        else:
            call = {"index": len(self._calls) - 1, "function": {"arguments": text}}
        return b'"tool_calls":[' + _encode(call) + b"]"


def _call(segment: Segment, arguments: str) -> dict[str, Any]:
    return {"id": segment.call_id, "type": "function", "function": {"name": segment.name, "arguments": arguments}}
