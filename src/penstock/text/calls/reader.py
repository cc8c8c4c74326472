"""One call of a tool in a model's text: its name, and its arguments as they come."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable

from penstock.text.calls.json_value import SPACE, JsonValue, is_json_object
from penstock.text.pieces import CallArguments, CallStart, Piece

Mode = Callable[[str, int], int]

_ARGUMENT_KEYS = ("arguments", "parameters")
_MOST_NAME_CHARACTERS = 256

# Where in the object of a call the reader is.
_BEFORE = "before {"
_KEY = "key"
_KEY_OR_END = "key or }"
_IN_KEY = "in a key"
_COLON = ":"
_VALUE = "value"
_IN_VALUE = "in a value"
_NEXT = ", or }"


class Reader(ABC):
    """Reads one call.

    Attributes:
        started: the call is told: what follows cannot take it back.
        complete: all of its arguments are told.
        ended: the text that makes up the call is at its end.
        broken: the text is no call, or goes on otherwise than a call does; the character at fault has not been taken.
        unsaid: text taken that no piece tells: all of it before the call has started, then what follows its arguments.
    """

    def __init__(self, index: int) -> None:
        """`index`: the call's place among those of an answer."""
        self.started = False
        self.complete = False
        self.ended = False
        self.broken = False
        self.unsaid: list[str] = []
        self._index = index

    @abstractmethod
    def feed(self, text: str, start: int, pieces: list[Piece]) -> int:
        """Take `text` from `start` on as far as it belongs to the call; the place behind what was taken."""


class NotationReader(Reader):
    """Reads a call in a notation that is not JSON, and tells its arguments as the JSON object that they come to.

    What comes next is read by a mode, which takes text from a position on and returns the place behind what it took.
    """

    def __init__(self, index: int, mode: "Mode") -> None:
        super().__init__(index)
        self._mode = mode
        self._name = ""
        # JSON of the arguments that no piece tells yet.
        self._told: list[str] = []

    def feed(self, text: str, start: int, pieces: list[Piece]) -> int:
        """See `Reader`."""
        position = start
        while position < len(text) and not self.ended and not self.broken:
            before, started = position, self.started
            position = self._mode(text, position)
            if not self.started:
                self.unsaid.append(text[before:position])
            elif not started:
                pieces.append(CallStart(self._index, self._name))
        if self._told and self.started:
            pieces.append(CallArguments(self._index, "".join(self._told)))
            self._told.clear()
        return position

    def _more_of_name(self, text: str, position: int, characters: re.Pattern[str]) -> int | None:
        """The place behind what belongs to the call's name; None where it is at its end."""
        found = characters.match(text, position)
        if found is None:
            return None
        self._name += found[0]
        self.broken = len(self._name) > _MOST_NAME_CHARACTERS
        return found.end()

    def _start(self) -> None:
        """By now it is certain that this is a call."""
        if not self.started:
            self.started = True
            self.unsaid.clear()


class ObjectReader(Reader):
    """Reads a call that is one JSON object with a name and arguments, in any order; other keys are passed over.

    Arguments may be called parameters. Where they are text that holds an object, as some models write them, they are
    that object; where there are none, or null, they are `{}`.
    """

    def __init__(self, index: int, keys: frozenset[str] | None = None) -> None:
        """An object with another key than `keys` is no call, nor is one without arguments; None allows both."""
        super().__init__(index)
        self._keys = keys
        self._place = _BEFORE
        self._value = JsonValue()
        # The text of the key or value that is being read, where it matters.
        self._text: list[str] = []
        self._key = ""
        self._streaming = False
        self._name: str | None = None
        self._arguments: str | None = None

    def feed(self, text: str, start: int, pieces: list[Piece]) -> int:
        """See `Reader`."""
        position = start
        while position < len(text) and not self.ended and not self.broken:
            if self._place is _IN_KEY or self._place is _IN_VALUE:
                position = self._follow(text, position, pieces)
            else:
                position = self._between(text, position, pieces)
        return position

    def _follow(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Go on with the key or value that is being read."""
        end = self._value.feed(text, position)
        taken = text[position:end]
        if self._streaming:
            if taken:
                pieces.append(CallArguments(self._index, taken))
        else:
            self.unsaid.append(taken)
            if self._matters():
                self._text.append(taken)
        if self._value.broken:
            self.broken = True
        elif self._value.ended:
            self._follow_ended(pieces)
        return end

    def _matters(self) -> bool:
        """Whether the text that is being read is needed: keys, and the first name and arguments."""
        return self._place is _IN_KEY or (not self.started and (self._key == "name" or self._key in _ARGUMENT_KEYS))

    def _follow_ended(self, pieces: list[Piece]) -> None:
        raw = "".join(self._text)
        self._text.clear()
        if self._place is _IN_KEY:
            self._key = json.loads(raw)
            self._place = _COLON
            self.broken = not self.started and self._keys is not None and self._key not in self._keys
            return
        self._place = _NEXT
        if self._streaming:
            self._streaming, self.complete = False, True
        elif not self.started and self._key == "name":
            self._name = json.loads(raw)
            self.broken = not is_tool_name(self._name)
            self._tell_if_known(pieces)
        elif not self.started and self._key in _ARGUMENT_KEYS:
            self._arguments = _arguments(raw)
            self.broken = self._arguments is None
            self._tell_if_known(pieces)

    def _tell_if_known(self, pieces: list[Piece]) -> None:
        """Tell a call whose name and arguments are both there."""
        if self.broken or self._name is None or self._arguments is None:
            return
        self._tell_start(self._name, pieces)
        pieces.append(CallArguments(self._index, self._arguments))
        self.complete = True

    def _tell_start(self, name: str, pieces: list[Piece]) -> None:
        self.started = True
        self.unsaid.clear()
        pieces.append(CallStart(self._index, name))

    def _between(self, text: str, position: int, pieces: list[Piece]) -> int:
        """Take one character between keys and values."""
        char, place = text[position], self._place
        if char in SPACE:
            pass
        elif place is _BEFORE and char == "{":
            self._place = _KEY_OR_END
        elif place in (_KEY, _KEY_OR_END) and char == '"':
            self._place, self._value = _IN_KEY, JsonValue()
            return position
        elif place is _COLON and char == ":":
            self._place = _VALUE
        elif place is _VALUE:
            self._begin_value(char, pieces)
            return position
        elif place is _NEXT and char == ",":
            self._place = _KEY
        elif place in (_NEXT, _KEY_OR_END) and char == "}":
            self._object_ended(pieces)
            if self.broken:
                return position
        else:
            self.broken = True
            return position
        self.unsaid.append(char)
        return position + 1

    def _begin_value(self, char: str, pieces: list[Piece]) -> None:
        self._place, self._value = _IN_VALUE, JsonValue()
        if self.started:
            return
        if self._key == "name":
            self.broken = char != '"'
        elif self._key in _ARGUMENT_KEYS:
            self.broken = char not in '{"n'
            if char == "{" and self._name is not None:
                self._streaming = True
                self._tell_start(self._name, pieces)

    def _object_ended(self, pieces: list[Piece]) -> None:
        if not self.started:
            if self._name is None or self._keys is not None:
                self.broken = True
                return
            self._arguments = "{}"
            self._tell_if_known(pieces)
        self.ended = True


class ArgumentsReader(Reader):
    """Reads a call whose name is known: a JSON object with its arguments."""

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index)
        self._name = name
        self._value = JsonValue()

    def feed(self, text: str, start: int, pieces: list[Piece]) -> int:
        """See `Reader`."""
        position = start
        while not self.started and position < len(text) and not self.broken:
            if text[position] == "{":
                self.started = True
                self.unsaid.clear()
                pieces.append(CallStart(self._index, self._name))
            elif text[position] in SPACE:
                self.unsaid.append(text[position])
                position += 1
            else:
                self.broken = True
        if not self.started or position == len(text):
            return position
        end = self._value.feed(text, position)
        if end > position:
            pieces.append(CallArguments(self._index, text[position:end]))
        self.complete = self.ended = self._value.ended
        self.broken = self._value.broken
        return end


def is_tool_name(name: str | None) -> bool:
    """Whether a tool may be called so: any text that can be printed."""
    return name is not None and bool(name) and name.isprintable()


def _arguments(raw: str) -> str | None:
    """The object that a call's arguments are, given the JSON text of their value; None where they are none."""
    if raw.startswith("{"):
        return raw
    value = json.loads(raw)
    if value is None:
        return "{}"
    # An escape can stand for half of a character, which no text can carry.
    return value if isinstance(value, str) and is_json_object(value) and _is_text(value) else None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
