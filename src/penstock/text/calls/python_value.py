"""A Python literal as it comes: where it ends, however its text is cut, and the JSON that it comes to."""

import json
import re
from collections.abc import Callable

from penstock.text.calls.json_value import is_json

_SPACES = re.compile(r"[ \t\r\n]+")
# Numbers and names.
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_PLAIN = {quote: re.compile(rf"[^\\{quote}]+") for quote in "'\""}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {
    **{char: char for char in "\\'\"/"},
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "0": "\0",
    "\n": "",
}
_HEX_SIZES = {"x": 2, "u": 4, "U": 8}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class PythonValue:
    """Follows one literal: a string, a number, True, False, None, or a list, tuple or dictionary of such.

    JSON is understood too. A tuple becomes an array, and so does a value between parentheses.

    Attributes:
        ended: the value is complete. A number or a word only is when something else follows it.
        broken: what came is no such value; the character at fault has not been taken.
        written: the JSON that it comes to, as far as it has come; the caller that reads it empties it.
        word: of a number or a word that is not complete, what is there.
    """

    __slots__ = ("_closers", "_expected", "_first", "_hex", "_mode", "_quote", "broken", "ended", "word", "written")

    def __init__(self) -> None:
        self.ended = False
        self.broken = False
        self.written: list[str] = []
        self.word = ""
        self._closers: list[str] = []
        # Whether nothing has come yet in the innermost list or dictionary.
        self._first = True
        # What may come between values: "value", "key", "colon" or "next".
        self._expected = "value"
        self._quote = ""
        # How many digits an escape has, and those that are there.
        self._hex = (0, "")
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
            self.written.append("}" if self._closers.pop() == "}" else "]")
            self._value_ended()
        elif expected == "next" and char == ",":
            self._expected = "key" if self._closers[-1] == "}" else "value"
        elif expected == "colon" and char == ":":
            self.written.append(": ")
            self._expected, self._first = "value", True
        elif expected in ("value", "key") and char in _PLAIN:
            self._separate()
            self.written.append('"')
            self._quote, self._mode = char, self._string
        elif expected == "value" and char in _CLOSING:
            self._open(char)
        elif expected == "value" and _WORD.match(char):
            self._separate()
            self._mode = self._in_word
            return position
        else:
            self.broken = True
            return position
        return position + 1

    def _open(self, char: str) -> None:
        self._separate()
        self._closers.append(_CLOSING[char])
        self.written.append("{" if char == "{" else "[")
        self._first, self._expected = True, "key" if char == "{" else "value"

    def _may_close(self) -> bool:
        """Whether a list or dictionary may end; behind a colon there must be a value."""
        return self._expected in ("next", "key" if self._closers[-1] == "}" else "value")

    def _separate(self) -> None:
        if self._closers and not self._first:
            self.written.append(", ")
        self._first = False

    def _value_ended(self) -> None:
        self._mode = self._between
        if self._expected == "key" and self._quote:
            self._expected = "colon"
        else:
            self._expected = "next"
            self._first = False
            self.ended = not self._closers
        self._quote = ""

    def _string(self, text: str, position: int) -> int:
        plain = _PLAIN[self._quote].match(text, position)
        if plain is not None:
            self.written.append(_escaped(plain[0]))
            return plain.end()
        if text[position] == self._quote:
            self.written.append('"')
            self._value_ended()
        else:
            self._mode = self._escape
        return position + 1

    def _escape(self, text: str, position: int) -> int:
        char = text[position]
        if char in _HEX_SIZES:
            self._hex, self._mode = (_HEX_SIZES[char], ""), self._digits
        else:
            # Python keeps the backslash of what is no escape.
            self.written.append(_escaped(_ESCAPES.get(char, "\\" + char)))
            self._mode = self._string
        return position + 1

    def _digits(self, text: str, position: int) -> int:
        size, digits = self._hex
        if text[position] not in _HEX_DIGITS:
            self.broken = True
            return position
        digits += text[position]
        self._hex = size, digits
        if len(digits) < size:
            return position + 1
        code = int(digits, 16)
        if code > 0x10FFFF:
            self.broken = True
            return position
        # Two halves of a character may follow each other, as in JSON.
        self.written.append(f"\\u{code:04x}" if code < 0x10000 else chr(code))
        self._mode = self._string
        return position + 1

    def _in_word(self, text: str, position: int) -> int:
        found = _WORD.match(text, position)
        if found is not None:
            self.word += found[0]
            return found.end()
        written = _number_or_word(self.word)
        if written is None:
            self.broken = True
        else:
            self.written.append(written)
            self.word = ""
            self._value_ended()
        return position


def _number_or_word(word: str) -> str | None:
    """The JSON of a number or of True, False and None; None where the word is neither."""
    word = _WORDS.get(word, word)
    if is_json(word):
        return word
    if word[0] not in "+-.0123456789":
        return None
    try:
        return str(int(word))
    except ValueError:
        pass
    try:
        written = repr(float(word))
    except ValueError:
        return None
    return written if is_json(written) else None


def _escaped(text: str) -> str:
    """Text inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
