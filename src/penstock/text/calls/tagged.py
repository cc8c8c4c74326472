"""Calls of tools between tags, as Qwen3-Coder and GLM-4.5 write them.

    <tool_call>                                <tool_call>get_weather
    <function=get_weather>                     <arg_key>city</arg_key>
    <parameter=city>                           <arg_value>Zürich</arg_value>
    Zürich                                     </tool_call>
    </parameter>
    </function>
    </tool_call>

Values are text where the tool's schema says so. Others are JSON, or what Python calls True, False and None; what is
neither is text. The arguments are told as the JSON object that they come to.
"""

import json
import re
from collections.abc import Callable

import msgspec

from penstock.text.calls.json_value import SPACE, JsonValue, is_json
from penstock.text.calls.parser import HERMES_CLOSER, HERMES_OPENER, CallParser, HermesParser, Texts
from penstock.text.calls.reader import NotationReader, is_tool_name
from penstock.text.pieces import beginning_at_end

_NAME = re.compile(r"[^\s<>]+")
_SPACES = re.compile(r"[ \t\r\n]+")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class Tags(msgspec.Struct, frozen=True):
    """What stands around a call's name, and around the name and the value of each of its arguments.

    Attributes:
        padded: the line break at a value's beginning, and the one at its end, belong to the tags.
    """

    name_begin: str
    name_end: str
    key_begin: str
    key_end: str
    value_begin: str
    value_end: str
    call_end: str
    padded: bool


QWEN = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", True)
GLM = Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", HERMES_CLOSER, False)


class _TextValue:
    """A value that is text, which is told as it comes."""

    json: JsonValue | None = None

    def __init__(self, padded: bool) -> None:
        self._padded = padded
        self._begun = False
        self._quoted = False
        self._line_end = ""

    def take(self, text: str) -> str:
        """Take more of it; what that adds to the arguments."""
        if not text:
            return ""
        if self._padded:
            if not self._begun:
                text = text.removeprefix("\n")
            text = self._line_end + text
            self._line_end = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        self._begun = True
        return self._opening() + _escaped(text) if text else ""

    def end(self) -> str:
        """What the end of it adds to the arguments."""
        return self._opening() + '"'

    def _opening(self) -> str:
        opening = "" if self._quoted else '"'
        self._quoted = True
        return opening


class _WholeValue:
    """A value whose type only the whole tells: JSON, or text that may be null."""

    def __init__(self, padded: bool, text: bool) -> None:
        self._padded = padded
        self._parts: list[str] = []
        # Inside of JSON, a tag does not end the value.
        self.json = None if text else JsonValue()
        self._is_text = text

    def take(self, text: str) -> str:
        """Take more of it; it adds nothing yet."""
        self._parts.append(text)
        return ""

    def end(self) -> str:
        """What it adds to the arguments."""
        text = "".join(self._parts)
        bare = text.strip(SPACE)
        word = _PYTHON_WORDS.get(bare, bare)
        if word == "null" if self._is_text else is_json(word):
            return word
        if self._padded:
            text = text.removeprefix("\n").removesuffix("\n")
        return f'"{_escaped(text)}"'


class TaggedReader(NotationReader):
    """Reads one call between tags."""

    def __init__(self, index: int, tags: Tags, texts: Texts) -> None:
        """`texts`: of each tool, those parameters whose values are text, and whether they may be null."""
        super().__init__(index, self._expect if tags.name_begin else self._read_name)
        self._tags = tags
        self._texts = texts
        self._key: list[str] = []
        self._arguments = 0
        self._value: _TextValue | _WholeValue = _TextValue(tags.padded)
        # The part that is there of what may be a tag.
        self._partial = ""
        self._expected: tuple[str, ...] = (tags.name_begin,)

    # Modes.

    def _expect(self, text: str, position: int) -> int:
        """White space, and one of the tags that may follow here."""
        spaces = None if self._partial else _SPACES.match(text, position)
        if spaces is not None:
            self._keep(spaces[0])
            return spaces.end()
        partial = self._partial + text[position]
        if not any(tag.startswith(partial) for tag in self._expected):
            self.broken = True
            return position
        self._keep(text[position])
        self._partial = partial
        if partial in self._expected:
            self._partial = ""
            self._found(partial)
        return position + 1

    def _read_name(self, text: str, position: int) -> int:
        if not self._name and not self._tags.name_begin and text[position] in SPACE:
            return position + 1
        behind = self._more_of_name(text, position, _NAME)
        if behind is not None:
            return behind
        end = self._tags.name_end
        if not is_tool_name(self._name) or (end and text[position] != end):
            self.broken = True
            return position
        self._expect_next()
        return position + len(end)

    def _read_key(self, text: str, position: int) -> int:
        ended, end = self._up_to(self._tags.key_end, text, position, self._key.append)
        if ended and self._tags.value_begin:
            self._expected, self._mode = (self._tags.value_begin,), self._expect
        elif ended:
            self._begin_value()
        return end

    def _read_json(self, text: str, position: int) -> int:
        """A value as long as it is JSON."""
        value = self._value.json
        assert value is not None, "only such values are read so"
        end = value.feed(text, position)
        self._value.take(text[position:end])
        if value.ended or value.broken:
            self._mode = self._read_value
        return end

    def _read_value(self, text: str, position: int) -> int:
        ended, end = self._up_to(self._tags.value_end, text, position, lambda part: self._tell(self._value.take(part)))
        if ended:
            self._tell(self._value.end())
            self._expect_next()
        return end

    def _up_to(self, tag: str, text: str, position: int, take: Callable[[str], None]) -> tuple[bool, int]:
        """Take what stands before a tag, and the tag; whether it was there."""
        seen = self._partial + text[position:]
        where = seen.find(tag)
        if where < 0:
            cut = len(seen) - beginning_at_end(seen, tag)
            take(seen[:cut])
            self._partial = seen[cut:]
            return False, len(text)
        take(seen[:where])
        end = position + where + len(tag) - len(self._partial)
        self._partial = ""
        return True, end

    # Transitions.

    def _expect_next(self) -> None:
        self._expected, self._mode = (self._tags.key_begin, self._tags.call_end), self._expect

    def _found(self, tag: str) -> None:
        if self.started:
            self.unsaid.clear()
        if tag == self._tags.name_begin:
            self._mode = self._read_name
        elif tag == self._tags.value_begin:
            self._begin_value()
        else:
            if not self.started:
                self._start()
                self._tell("{")
            if tag == self._tags.key_begin:
                self._mode = self._read_key
            else:
                self._tell("}")
                self.complete = self.ended = True

    def _begin_value(self) -> None:
        key = "".join(self._key)
        self._key.clear()
        self._tell(f'{", " if self._arguments else ""}"{_escaped(key)}": ')
        self._arguments += 1
        nullable = self._texts.get(self._name, {}).get(key)
        if nullable is False:
            self._value = _TextValue(self._tags.padded)
        else:
            self._value = _WholeValue(self._tags.padded, text=nullable is True)
        self._mode = self._read_value if self._value.json is None else self._read_json

    def _keep(self, text: str) -> None:
        """What is between the arguments is told if the call breaks off there."""
        if self.started:
            self.unsaid.append(text)

    def _tell(self, text: str) -> None:
        if text:
            self._told.append(text)


class QwenParser(HermesParser):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, Qwen3-Coder's format."""

    def _opened(self) -> None:
        self._begin_call(TaggedReader(self._calls, QWEN, self._texts))


class GlmParser(CallParser):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`, GLM-4.5's format."""

    opener = HERMES_OPENER

    def _opened(self) -> None:
        self._begin_call(TaggedReader(self._calls, GLM, self._texts))

    def _call_ended(self) -> None:
        self._mode = self._text

    def _found(self, token: str) -> None:
        """Nothing is expected outside of a call."""


def _escaped(text: str) -> str:
    """Text inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
