"""Calls of tools as Gemma 4 writes them: `<|tool_call>call:get_weather{city:<|"|>Zürich<|"|>,days:2}<tool_call|>`.

Source: Google, "Gemma 4 Prompt Formatting", 2026, section on function calling.
"""

import re

from penstock.text.calls.gemma_value import GemmaValue
from penstock.text.calls.json_value import SPACE
from penstock.text.calls.parser import CallParser
from penstock.text.calls.reader import NotationReader, is_tool_name

GEMMA_OPENER, GEMMA_CLOSER = "<|tool_call>", "<tool_call|>"

_BEFORE_NAME = "call:"
_NAME = re.compile(r"[^\s{}<>]+")


class GemmaReader(NotationReader):
    """Reads one call; its arguments are an object in Gemma's notation."""

    def __init__(self, index: int) -> None:
        super().__init__(index, self._before_name)
        self._beginning = ""
        self._value = GemmaValue()

    # Modes.

    def _before_name(self, text: str, position: int) -> int:
        char = text[position]
        if not self._beginning and char in SPACE:
            return position + 1
        if not _BEFORE_NAME.startswith(self._beginning + char):
            self.broken = True
            return position
        self._beginning += char
        if self._beginning == _BEFORE_NAME:
            self._mode = self._read_name
        return position + 1

    def _read_name(self, text: str, position: int) -> int:
        end = self._more_of_name(text, position, _NAME)
        if end is not None:
            return end
        if text[position] != "{" or not is_tool_name(self._name):
            self.broken = True
            return position
        self._start()
        self._mode = self._read_arguments
        return position

    def _read_arguments(self, text: str, position: int) -> int:
        value = self._value
        end = value.feed(text, position)
        self._told += value.written
        value.written.clear()
        if value.broken:
            self.broken = True
            self.unsaid.append(value.pending)
        self.complete = self.ended = value.ended
        return end


class GemmaParser(CallParser):
    """Calls between marks, one behind the other, anywhere in the text."""

    opener = GEMMA_OPENER

    def _opened(self) -> None:
        self._begin_call(GemmaReader(self._calls))

    def _call_ended(self) -> None:
        self._expect_one_of(GEMMA_CLOSER)

    def _found(self, token: str) -> None:
        self._held.clear()
        self._mode = self._text
