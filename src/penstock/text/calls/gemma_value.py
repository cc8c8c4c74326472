"""A value in Gemma 4's notation as it comes: where it ends, however its text is cut, and the JSON that it comes to."""

import json
import re
from collections.abc import Callable

from penstock.text.calls.json_value import SPACE, JsonValue, is_json
from penstock.text.pieces import beginning_at_end

GEMMA_QUOTE = '<|"|>'

_SPACES = re.compile(r"[ \t\r\n]+")
# Longer than any number: what goes on is text.
_LONGEST_WORD = 64
# A number, a word, or a text that should have been between quotes.
_BARE = re.compile(r"[^,{}\[\]]+")
_KEY = re.compile(r"[^:,{}\[\]]+")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_CLOSING = {"[": "]", "{": "}"}


class GemmaValue:
    """Follows one object or list: keys stand as they are, texts between `<|"|>`, all else is as in JSON.

    Texts and keys between JSON's quotes are understood, too. A bare value that is neither a number nor true, false or
    null is text.

    Attributes:
        ended: the value is complete.
        broken: what came is no such value; the character at fault has not been taken.
        written: the JSON that it comes to, as far as it has come; the caller that reads it empties it.
        pending: what is taken of a mark, or of a key or a bare value that may yet be a number, and not written.
    """

    __slots__ = ("_closers", "_expected", "_first", "_json", "_mode", "broken", "ended", "pending", "written")

    def __init__(self) -> None:
        self.ended = False
        self.broken = False
        self.written: list[str] = []
        self.pending = ""
        self._closers: list[str] = []
        # Whether nothing has come yet in the innermost object or list.
        self._first = True
        # What may come between values: "value", "key", "colon" or "next".
        self._expected = "value"
        self._json = JsonValue()
        self._mode: Callable[[str, int], int] = self._between

    def feed(self, text: str, start: int = 0) -> int:
        """Take `text` from `start` on as far as it belongs to the value; the place behind what was taken."""
        position = start
        while position < len(text) and not self.ended and not self.broken:
            position = self._mode(text, position)
        return position

    def _between(self, text: str, position: int) -> int:
        spaces = _SPACES.match(text, position)
        if spaces is not None:
            return spaces.end()
        char, expected = text[position], self._expected
        if self._closers and char == self._closers[-1] and self._may_close():
            self.written.append(self._closers.pop())
            self._expected = "value"
            self._value_ended()
        elif expected == "next" and char == ",":
            self._expected = "key" if self._closers[-1] == "}" else "value"
        elif expected == "colon" and char == ":":
            self.written.append(": ")
            self._expected, self._first = "value", True
        elif expected == "value" and char in _CLOSING:
            self._separate()
            self.written.append(char)
            self._closers.append(_CLOSING[char])
            self._first, self._expected = True, "key" if char == "{" else "value"
        elif expected in ("value", "key") and self._closers and char not in ",:{}[]":
            self._separate()
            self._mode = self._begin
            return position
        else:
            self.broken = True
            return position
        return position + 1

    def _may_close(self) -> bool:
        """Whether an object or list may end; behind a colon there must be a value."""
        return self._expected in ("next", "key" if self._closers[-1] == "}" else "value")

    def _separate(self) -> None:
        if self._closers and not self._first:
            self.written.append(", ")
        self._first = False

    def _begin(self, text: str, position: int) -> int:
        """The beginning of a key or of a value that is no object or list: between which quotes, if any."""
        if not self.pending and text[position] == '"':
            self._json, self._mode = JsonValue(), self._in_json
            return position
        begun = self.pending + text[position]
        if not GEMMA_QUOTE.startswith(begun):
            self._mode = self._bare
            return position
        self.pending = begun
        if begun == GEMMA_QUOTE:
            self.pending, self._mode = "", self._text
            self.written.append('"')
        return position + 1

    def _text(self, text: str, position: int) -> int:
        """Text between Gemma's quotes, in which nothing else has a meaning."""
        held = len(self.pending)
        seen, start = (self.pending + text[position:], 0) if held else (text, position)
        where = seen.find(GEMMA_QUOTE, start)
        if where < 0:
            cut = len(seen) - beginning_at_end(seen, GEMMA_QUOTE, start)
            if cut > start:
                self.written.append(_escaped(seen[start:cut]))
            self.pending = seen[cut:]
            return len(text)
        self.written += (_escaped(seen[start:where]), '"')
        behind = where + len(GEMMA_QUOTE)
        self.pending = ""
        self._value_ended()
        return position + behind - held if held else behind

    def _in_json(self, text: str, position: int) -> int:
        end = self._json.feed(text, position)
        if end > position:
            self.written.append(text[position:end])
        self.broken = self._json.broken
        if self._json.ended:
            self._value_ended()
        return end

    def _bare(self, text: str, position: int) -> int:
        found = (_KEY if self._expected == "key" else _BARE).match(text, position)
        if found is not None:
            self.pending += found[0]
            if len(self.pending) > _LONGEST_WORD:
                self.written += ('"', _escaped(self.pending))
                self.pending, self._mode = "", self._long
            return found.end()
        word = self.pending.strip(SPACE)
        word = _WORDS.get(word, word)
        self.written.append(word if self._expected == "value" and is_json(word) else f'"{_escaped(word)}"')
        self.pending = ""
        self._value_ended()
        return position

    def _long(self, text: str, position: int) -> int:
        """The rest of a bare text that is too long for anything else."""
        found = (_KEY if self._expected == "key" else _BARE).match(text, position)
        if found is not None:
            self.written.append(_escaped(found[0]))
            return found.end()
        self.written.append('"')
        self._value_ended()
        return position

    def _value_ended(self) -> None:
        self._mode = self._between
        if self._expected == "key":
            self._expected = "colon"
        else:
            self._expected, self._first = "next", False
            self.ended = not self._closers


def _escaped(text: str) -> str:
    """Text inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
