"""What a model has written in an answer, in any dialect, whole or as events: all of it, calls and reasoning too."""

from collections.abc import Iterator
from typing import Any

import msgspec

# Where models answer with text.
TEXT_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/translate"))
# Fields of messages, deltas, blocks and items that hold what was written, or lead to it.
_TEXTS = (
    *("text", "content", "refusal", "reasoning_content", "reasoning", "thinking", "summary"),
    *("name", "arguments", "partial_json", "input"),
)
_NESTED = ("tool_calls", "function_call", "function", "custom")
_decode = msgspec.json.Decoder(dict[str, Any]).decode
# What is raised for what is no JSON object.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class AnswerText:
    """What was written so far. Each choice, message or call is a part of its own, in the order in which they began."""

    def __init__(self) -> None:
        self._parts: dict[tuple[object, ...], list[str]] = {}
        self.length = 0

    def __str__(self) -> str:
        return "\n".join("".join(pieces) for pieces in self._parts.values())

    def take_event(self, data: bytes) -> None:
        """The data of one event. Raises one of UNREADABLE."""
        self._take(_decode(data))

    def take_whole(self, body: bytes) -> None:
        """An answer that is no stream. Raises the same."""
        self._take(_decode(body))

    def _take(self, said: dict[str, Any]) -> None:
        for choice in _dicts(said.get("choices")):
            index = choice.get("index", 0)
            if isinstance(choice.get("text"), str):
                self._add((index, "text"), choice["text"])
            for name in ("message", "delta"):
                self._take_fields(index, choice.get(name))
        for name in ("translatedText", "alternatives"):
            self._take_texts((name,), said.get(name))
        self._take_typed(said)

    def _take_texts(self, where: tuple[object, ...], value: Any) -> None:
        """A text, or a list of texts or of such lists, as translations have them."""
        if isinstance(value, list):
            for place, each in enumerate(value):
                self._take_texts((*where, place), each)
        else:
            self._add(where, value)

    def _take_typed(self, said: dict[str, Any]) -> None:
        """What says by its type what it is."""
        kind = str(said.get("type", ""))
        if kind == "message":
            for place, block in enumerate(_dicts(said.get("content"))):
                self._take_fields(place, block)
        elif kind in ("content_block_start", "content_block_delta"):
            self._take_fields(said.get("index", 0), said.get("content_block", said.get("delta")))
        elif kind.endswith(".delta"):
            where = (said.get("output_index"), said.get("content_index"), said.get("summary_index"), kind)
            self._add(where, said.get("delta"))
        elif kind == "response.output_item.added":
            item = said.get("item")
            if isinstance(item, dict):
                self._add((said.get("output_index"), "name"), item.get("name"))
        elif kind in ("response.completed", "response.incomplete"):
            # All of it once more: this is what holds.
            self._parts.clear()
            self.length = 0
            self._take_output(said.get("response"))
        elif said.get("object") == "response":
            self._take_output(said)

    def _take_output(self, response: Any) -> None:
        for index, item in enumerate(_dicts(response.get("output") if isinstance(response, dict) else None)):
            self._take_fields(index, item)

    def _take_fields(self, index: object, fields: Any) -> None:
        if not isinstance(fields, dict):
            return
        for name in _TEXTS:
            for where, piece in _pieces(fields.get(name)):
                self._add((index, name, *where), piece)
        for name in _NESTED:
            inner = fields.get(name)
            for place, each in enumerate(_dicts(inner if isinstance(inner, list) else [inner])):
                self._take_fields((index, name, each.get("index", place)), each)

    def _add(self, where: tuple[object, ...], piece: Any) -> None:
        if isinstance(piece, str) and piece:
            self._parts.setdefault(where, []).append(piece)
            self.length += len(piece)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _pieces(value: Any) -> Iterator[tuple[tuple[object, ...], str]]:
    """The texts in a field's value, and where in it they are: a text, blocks with texts, or an object of arguments."""
    if isinstance(value, str):
        yield (), value
    elif isinstance(value, list):
        for place, each in enumerate(value):
            if isinstance(each, dict):
                for name in ("text", "refusal", "thinking"):
                    if isinstance(each.get(name), str):
                        yield (place, name), each[name]
    elif isinstance(value, dict) and value:
        yield (), msgspec.json.encode(value).decode()
