"""JSON as it comes: where a value ends, however its text is cut, and where it turns out to be none."""

import re

SPACE = " \t\r\n"

# What is expected next, inside of arrays and objects or before the value itself.
_VALUE = "value"
_VALUE_OR_END = "value or ]"
_KEY = "key"
_KEY_OR_END = "key or }"
_COLON = ":"
_NEXT = ", or end"
# Inside of a string, a number, or one of the words.
_STRING = "string"
_ESCAPE = "escape"
_HEX = "hex"
_NUMBER = "number"
_WORD = "word"

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SPACES = re.compile(r"[ \t\r\n]+")
_ESCAPES = frozenset('"\\/bfnrt')
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_CLOSING = {"[": "]", "{": "}"}

# A number's parts: from each, the part that a character leads to. It may end in those of _COMPLETE.
_DIGITS = "0123456789"
_AFTER_POINT = dict.fromkeys(_DIGITS, "fraction")
_IN_EXPONENT = dict.fromkeys(_DIGITS, "exponent")
_PARTS: dict[str, dict[str, str]] = {
    "start": {"-": "minus", "0": "zero", **dict.fromkeys("123456789", "integer")},
    "minus": {"0": "zero", **dict.fromkeys("123456789", "integer")},
    "zero": {".": "point", "e": "e", "E": "e"},
    "integer": {".": "point", "e": "e", "E": "e", **dict.fromkeys(_DIGITS, "integer")},
    "point": _AFTER_POINT,
    "fraction": {"e": "e", "E": "e", **_AFTER_POINT},
    "e": {"+": "sign", "-": "sign", **_IN_EXPONENT},
    "sign": _IN_EXPONENT,
    "exponent": _IN_EXPONENT,
}
_COMPLETE = frozenset({"zero", "integer", "fraction", "exponent"})


class JsonValue:
    """Follows the text of one JSON value (RFC 8259), strictly and without recursion.

    Attributes:
        ended: the value is complete. A number only is when something else follows it.
        broken: what came is not JSON; the character at fault has not been taken.
    """

    __slots__ = ("_containers", "_expected", "_in_key", "_part", "_rest", "broken", "ended")

    def __init__(self) -> None:
        self.ended = False
        self.broken = False
        self._expected = _VALUE
        self._containers: list[str] = []
        self._in_key = False
        # The part of a number that is there, and the letters of a word or digits of \u that are missing.
        self._part = ""
        self._rest = ""

    def feed(self, text: str, start: int = 0) -> int:
        """Take `text` from `start` on as far as it belongs to the value; the place behind what was taken."""
        position = start
        while position < len(text) and not self.ended and not self.broken:
            position = self._step(text, position)
        return position

    def _step(self, text: str, position: int) -> int:
        expected = self._expected
        if expected is _STRING:
            plain = _PLAIN.match(text, position)
            return plain.end() if plain is not None else self._in_string(text[position], position)
        if expected is _NUMBER:
            return self._in_number(text[position], position)
        if expected is _ESCAPE or expected is _HEX or expected is _WORD:
            return self._in_sequence(text[position], position)
        spaces = _SPACES.match(text, position)
        return spaces.end() if spaces is not None else self._between(text[position], position)

    def _between(self, char: str, position: int) -> int:
        """A character that is neither white space nor inside of a string, a number or a word."""
        expected = self._expected
        closes = expected in (_NEXT, _VALUE_OR_END, _KEY_OR_END)
        if closes and char == _CLOSING[self._containers[-1]]:
            self._containers.pop()
            self._value_ended()
        elif expected is _NEXT and char == ",":
            self._expected = _KEY if self._containers[-1] == "{" else _VALUE
        elif expected is _COLON and char == ":":
            self._expected = _VALUE
        elif expected in (_KEY, _KEY_OR_END) and char == '"':
            self._expected, self._in_key = _STRING, True
        elif expected in (_VALUE, _VALUE_OR_END):
            return self._begin(char, position)
        else:
            self.broken = True
            return position
        return position + 1

    def _begin(self, char: str, position: int) -> int:
        """The first character of a value."""
        if char in _CLOSING:
            self._containers.append(char)
            self._expected = _KEY_OR_END if char == "{" else _VALUE_OR_END
        elif char == '"':
            self._expected, self._in_key = _STRING, False
        elif char in _WORDS:
            self._expected, self._rest = _WORD, _WORDS[char]
        elif char in _PARTS["start"]:
            self._expected, self._part = _NUMBER, _PARTS["start"][char]
        else:
            self.broken = True
            return position
        return position + 1

    def _in_string(self, char: str, position: int) -> int:
        if char == '"':
            if self._in_key:
                self._expected = _COLON
            else:
                self._value_ended()
        elif char == "\\":
            self._expected = _ESCAPE
        else:
            self.broken = True
            return position
        return position + 1

    def _in_sequence(self, char: str, position: int) -> int:
        """A character of an escape in a string, or of a word."""
        if self._expected is _ESCAPE and char in _ESCAPES:
            self._expected = _STRING
        elif self._expected is _ESCAPE and char == "u":
            self._expected, self._rest = _HEX, "0000"
        elif self._expected is _HEX and char in _HEX_DIGITS:
            self._rest = self._rest[1:]
            if not self._rest:
                self._expected = _STRING
        elif self._expected is _WORD and char == self._rest[0]:
            self._rest = self._rest[1:]
            if not self._rest:
                self._value_ended()
        else:
            self.broken = True
            return position
        return position + 1

    def _in_number(self, char: str, position: int) -> int:
        part = _PARTS[self._part].get(char)
        if part is not None:
            self._part = part
            return position + 1
        if self._part in _COMPLETE:
            self._value_ended()
        else:
            self.broken = True
        return position

    def _value_ended(self) -> None:
        self._expected = _NEXT
        self.ended = not self._containers


def is_json_object(text: str) -> bool:
    """Whether `text` is a JSON object and nothing else."""
    value = JsonValue()
    return text.startswith("{") and value.feed(text) == len(text) and value.ended


def is_json(text: str) -> bool:
    """Whether `text` is a JSON value and nothing else."""
    value = JsonValue()
    # A number is known to be complete by what follows it.
    return value.feed(f"{text} ") >= len(text) and value.ended
