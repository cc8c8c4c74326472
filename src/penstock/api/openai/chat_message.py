"""The message of a chat's choice, from the pieces of its text: as deltas of a stream, or whole."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.text.output_format import Parsing
from penstock.text.pieces import CallArguments, CallStart, Content, Piece, Reasoning, joined

_encode = msgspec.json.Encoder().encode
_ROLE = b'"role":"assistant",'


class ChatMessage:
    """What has been written, or collected, of one message."""

    def __init__(self, parsing: Parsing) -> None:
        self._parsing = parsing
        self._parser = parsing.parser()
        self._started = self._told = False
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []
        self._has_calls = False

    @property
    def calls(self) -> bool:
        """Whether tools are called, with all of their arguments."""
        return self._has_calls and self._parser.calls_whole

    @property
    def done(self) -> bool:
        """Whether the message is complete, whatever text follows."""
        return self._parser.done

    def deltas(self, text: str, *, ended: bool) -> list[bytes]:
        """Take more text; the fields of each delta that it makes, the first of all with the role."""
        deltas = [self._delta(piece) for piece in self._pieces(text, ended)]
        self._told = self._told or bool(deltas)
        if ended and not self._told:
            deltas = [b'"content":""']
        if not self._started:
            self._started = True
            # Calls and reasoning alone have no content, and what is not known yet may be such.
            first = deltas[0] if deltas else b'"content":null'
            deltas[:1] = [_ROLE + (b"" if first.startswith(b'"content"') else b'"content":null,') + first]
        return deltas

    def add(self, text: str, *, ended: bool) -> None:
        """Take more text for `whole`."""
        for piece in self._pieces(text, ended):
            match piece:
                case Content():
                    self._content.append(piece.text)
                case Reasoning():
                    self._reasoning.append(piece.text)
                case CallStart():
                    self._calls.append((self._parsing.call_id(), piece.name, []))
                case CallArguments():
                    self._calls[piece.index][2].append(piece.text)

    def whole(self) -> dict[str, Any]:
        """The message as whole answers have it, a dictionary for JSON."""
        content = "".join(self._content)
        reasoning = "".join(self._reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if not content and (reasoning or self._calls):
            message["content"] = None
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = [
                {"id": call, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
                for call, name, arguments in self._calls
            ]
        return message

    def _pieces(self, text: str, ended: bool) -> Sequence[Piece]:
        pieces = self._parser.feed(text)
        if ended:
            pieces = joined([*pieces, *self._parser.finish()])
        self._has_calls = self._has_calls or any(isinstance(piece, CallStart) for piece in pieces)
        return pieces

    def _delta(self, piece: Piece) -> bytes:
        match piece:
            case Content():
                return b'"content":' + _encode(piece.text)
            case Reasoning():
                return b'"reasoning_content":' + _encode(piece.text)
            case CallStart():
                function = {"name": piece.name, "arguments": ""}
                call = {"index": piece.index, "id": self._parsing.call_id(), "type": "function", "function": function}
            case CallArguments():
                call = {"index": piece.index, "function": {"arguments": piece.text}}
        return b'"tool_calls":[' + _encode(call) + b"]"
