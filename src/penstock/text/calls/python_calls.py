"""Calls of tools in Python's notation, as Llama 3.2 and 4 write them: `[get_weather(city="Zürich", days=2), now()]`."""

import json
import re

from penstock.text.calls.json_value import SPACE
from penstock.text.calls.parser import CallParser, Texts
from penstock.text.calls.python_value import PythonValue
from penstock.text.calls.reader import NotationReader, is_tool_name

PYTHON_OPENER, PYTHON_CLOSER = "<|python_start|>", "<|python_end|>"
# How templates tell the model of the format.
PYTHON_TEMPLATE = "[func_name1("

_NAME = re.compile(r"[^\s=(),:'\"\[\]{}]+")
_SPACES = re.compile(r"[ \t\r\n]+")


class PythonReader(NotationReader):
    """Reads one call; all of its arguments have names."""

    def __init__(self, index: int) -> None:
        super().__init__(index, self._read_name)
        self._key = ""
        self._arguments = 0
        self._value = PythonValue()

    # Modes.

    def _read_name(self, text: str, position: int) -> int:
        if not self._name and text[position] in SPACE:
            return position + 1
        end = self._more_of_name(text, position, _NAME)
        if end is not None:
            return end
        if text[position] != "(" or not is_tool_name(self._name):
            self.broken = True
            return position
        self._told.append("{")
        self._mode = self._before_key
        return position + 1

    def _before_key(self, text: str, position: int) -> int:
        """An argument's name, or the call's end."""
        spaces = _SPACES.match(text, position)
        if spaces is not None:
            return spaces.end()
        if text[position] == ")":
            return self._end(position)
        self._key = ""
        self._mode = self._read_key
        return position

    def _read_key(self, text: str, position: int) -> int:
        found = _NAME.match(text, position)
        if found is not None:
            self._key += found[0]
            return found.end()
        self._mode = self._before_equals
        self.broken = not self._key
        return position

    def _before_equals(self, text: str, position: int) -> int:
        spaces = _SPACES.match(text, position)
        if spaces is not None:
            return spaces.end()
        if text[position] != "=":
            self.broken = True
            if self.started:
                self.unsaid.append(self._key)
            return position
        self._told.append(f"{', ' if self._arguments else ''}{json.dumps(self._key, ensure_ascii=False)}: ")
        self._arguments += 1
        self._value = PythonValue()
        self._mode = self._read_value
        return position + 1

    def _read_value(self, text: str, position: int) -> int:
        value = self._value
        end = value.feed(text, position)
        if value.written:
            self._start()
            self._told += value.written
            value.written.clear()
        if value.broken:
            self.broken = True
            if self.started:
                self.unsaid.append(value.word)
        elif value.ended:
            self._mode = self._after_value
        return end

    def _after_value(self, text: str, position: int) -> int:
        spaces = _SPACES.match(text, position)
        if spaces is not None:
            return spaces.end()
        if text[position] == ")":
            return self._end(position)
        if text[position] != ",":
            self.broken = True
            return position
        self._mode = self._before_key
        return position + 1

    def _end(self, position: int) -> int:
        self._start()
        self._told.append("}")
        self.complete = self.ended = True
        return position + 1


class PythonParser(CallParser):
    """`[name(key=value), name()]` as the whole answer, or between marks anywhere."""

    opener = PYTHON_OPENER

    def __init__(self, most_calls: int | None = None, texts: Texts | None = None, *, alone: bool = False) -> None:
        super().__init__(most_calls, texts, alone=alone)
        self._between_marks = False
        self._expect_one_of("[", PYTHON_OPENER)

    def _opened(self) -> None:
        self._between_marks = True
        self._expect_one_of("[")

    def _found(self, token: str) -> None:
        if token == PYTHON_OPENER:
            self._opened()
        elif token in ("[", ","):
            self._begin_call(PythonReader(self._calls))
        else:
            self._held.clear()
            if token == "]" and self._between_marks:
                self._between_marks = False
                self._expect_one_of(PYTHON_CLOSER)
            else:
                self._mode = self._text

    def _call_ended(self) -> None:
        self._expect_one_of(",", "]")
