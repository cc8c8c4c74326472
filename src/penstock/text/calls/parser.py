"""Text with calls of tools in it, as it comes: what is for the reader and what is a call.

Formats differ in what begins a call, what stands between calls, and what ends them. All else is common: text that
may yet be the beginning of a call is held back; as soon as a call's name is known and its arguments have begun, the
call is told, and its arguments as they come; what began like a call but is none is content, to the last character.
A call that breaks off inside of its arguments stays a call, and what follows is content. White space around calls
belongs to them.
"""

import abc
import re
from collections.abc import Callable, Mapping, Sequence

from penstock.text.calls.json_value import SPACE
from penstock.text.calls.reader import ArgumentsReader, ObjectReader, Reader, is_tool_name
from penstock.text.pieces import Content, Piece, beginning_at_end, joined

Texts = Mapping[str, Mapping[str, bool]]
"""For each tool those of its parameters whose values are text, and whether they may be null."""

_SPACES = re.compile(r"[ \t\r\n]+")
_NAME = re.compile(r"[^\s\[{]+")

HERMES_OPENER, HERMES_CLOSER = "<tool_call>", "</tool_call>"
LLAMA_OPENER = "<|python_tag|>"
MISTRAL_OPENER, MISTRAL_ARGUMENTS, MISTRAL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

# What a call in Llama's format may say beside its name and parameters; another object is an answer in JSON.
_LLAMA_KEYS = frozenset({"arguments", "id", "name", "parameters", "type"})
_MOST_NAME_CHARACTERS = 256


class CallParser(abc.ABC):
    """What all formats have in common: an `OutputParser` of text in which `opener` may begin calls.

    Attributes:
        done: the wanted number of calls is complete; all that follows is left out.
    """

    opener: str

    def __init__(self, most_calls: int | None = None, texts: Texts | None = None, *, alone: bool = False) -> None:
        """`texts` matters to formats whose values do not tell their type.

        Where calls are `alone`, nothing else is in the text: what is left of one that was cut off is no content.
        """
        self.done = False
        self._alone = alone
        self._most_calls = most_calls
        self._texts = texts or {}
        self._calls = 0
        self._pieces: list[Piece] = []
        # What is taken and not told: white space, and then what may be the beginning of a call.
        self._held: list[str] = []
        # The part that is there of an opener, or of what is expected.
        self._partial = ""
        # Whether nothing but white space has come since the last call.
        self._after_call = False
        self._mode: Callable[[str, int], int] = self._text
        self._expected: tuple[str, ...] = ()
        self._reader: Reader = ObjectReader(0)
        self._reader_counted = False
        self._has_lost = False

    @property
    def calls_whole(self) -> bool:
        """Whether no call that was told lacks a part of its arguments, so far."""
        return not self._has_lost and not self._lacks_part

    @property
    def _lacks_part(self) -> bool:
        return self._reader_counted and not self._reader.complete

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; what is certain now."""
        position = 0
        while position < len(text) and not self.done:
            position = self._mode(text, position)
        return self._take_pieces()

    def finish(self) -> Sequence[Piece]:
        """The text has ended; the rest. What began like a call but is none is content."""
        if not self.done:
            self._finish()
            self._held.clear()
            self._partial, self._mode = "", self._text
        return self._take_pieces()

    def _finish(self) -> None:
        if self._mode == self._object:
            if not self._reader.started:
                self._tell_held(self._reader.unsaid)
            # What follows a call's arguments is the format's, and only incomplete.
        elif self._mode != self._expect or not self._after_call:
            rest = "".join(self._held) + self._partial
            if not self._after_call or rest.strip(SPACE):
                self._tell(rest)

    # What the formats say.

    @abc.abstractmethod
    def _opened(self) -> None:
        """The opener has been found."""

    @abc.abstractmethod
    def _found(self, token: str) -> None:
        """One of the expected tokens has been found."""

    @abc.abstractmethod
    def _call_ended(self) -> None:
        """A call's text is at its end."""

    # Modes: each takes text from a position on, and returns the place behind what it took.

    def _text(self, text: str, position: int) -> int:
        """Text for the reader, up to an opener."""
        seen, start = (self._partial + text[position:], 0) if self._partial else (text, position)
        where = seen.find(self.opener, start)
        if where >= 0:
            behind = where + len(self.opener)
            self._partial = ""
            self._tell_text(seen[start:where])
            self._held.append(self.opener)
            self._after_call = False
            self._opened()
            return len(text) - (len(seen) - behind)
        cut = len(seen) - beginning_at_end(seen, self.opener, start)
        self._tell_text(seen[start:cut])
        self._partial = seen[cut:]
        return len(text)

    def _expect(self, text: str, position: int) -> int:
        """White space, and one of the tokens that may follow here; else text for the reader goes on."""
        spaces = None if self._partial else _SPACES.match(text, position)
        if spaces is not None:
            self._held.append(spaces[0])
            return spaces.end()
        partial = self._partial + text[position]
        if not any(token.startswith(partial) for token in self._expected):
            self._to_text()
            return position
        self._partial = partial
        if partial in self._expected:
            self._partial = ""
            self._held.append(partial)
            self._found(partial)
        return position + 1

    def _object(self, text: str, position: int) -> int:
        """The text of one call."""
        reader = self._reader
        end = reader.feed(text, position, self._pieces)
        if reader.started and not self._reader_counted:
            self._reader_counted = True
            self._calls += 1
            self._held.clear()
        if reader.complete and self._calls == self._most_calls:
            self.done = True
        elif reader.ended:
            self._after_call = True
            self._call_ended()
        elif reader.broken:
            self._broken(reader)
        return end

    def _broken(self, reader: Reader) -> None:
        if reader.started and self._calls == self._most_calls:
            self.done = True
            return
        self._tell_held(reader.unsaid)
        self._after_call = False
        self._mode = self._text

    # Transitions.

    def _begin_call(self, reader: Reader) -> None:
        self._has_lost = self._has_lost or self._lacks_part
        self._reader, self._reader_counted = reader, False
        self._mode = self._object

    def _begin_object(self, keys: frozenset[str] | None = None) -> None:
        self._begin_call(ObjectReader(self._calls, keys))

    def _expect_one_of(self, *tokens: str) -> None:
        self._expected = tokens
        self._mode = self._expect

    def _to_text(self) -> None:
        """What was held is no call. Of white space at its end that is not known yet."""
        held = "".join(self._held)
        text = held.rstrip(SPACE)
        self._tell(text)
        self._held = [held[len(text) :]] if len(text) < len(held) else []
        self._mode = self._text

    def _tell_text(self, text: str) -> None:
        """Text for the reader; white space at its end is held, since a call may follow."""
        shown = text.rstrip(SPACE)
        if shown:
            self._tell("".join(self._held) + shown)
            self._held.clear()
        if len(shown) < len(text):
            self._held.append(text[len(shown) :])

    def _tell_held(self, more: Sequence[str]) -> None:
        self._tell("".join(self._held) + "".join(more))
        self._held.clear()

    def _tell(self, text: str) -> None:
        if text and not self._alone:
            self._after_call = False
            self._pieces.append(Content(text))

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces if len(pieces) < 2 else joined(pieces)


class HermesParser(CallParser):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Hermes and Qwen models write calls."""

    opener = HERMES_OPENER

    def _opened(self) -> None:
        self._begin_object()

    def _call_ended(self) -> None:
        self._expect_one_of(HERMES_CLOSER)

    def _found(self, token: str) -> None:
        self._held.clear()
        self._mode = self._text


class LlamaParser(CallParser):
    """`{"name": ..., "parameters": ...}` as the whole answer, several with semicolons between; Llama 3's format.

    `<|python_tag|>` begins calls anywhere, an object by itself only at the answer's beginning.
    """

    opener = LLAMA_OPENER

    def __init__(self, most_calls: int | None = None, texts: Texts | None = None, *, alone: bool = False) -> None:
        super().__init__(most_calls, texts, alone=alone)
        self._expect_one_of("{", LLAMA_OPENER)

    def _opened(self) -> None:
        self._begin_object(_LLAMA_KEYS)

    def _call_ended(self) -> None:
        self._expect_one_of(";", "{")

    def _found(self, token: str) -> None:
        if token == ";":
            self._expect_one_of("{", LLAMA_OPENER)
            return
        self._begin_object(_LLAMA_KEYS)
        if token == "{":
            # It belongs to the object, which holds it from now on.
            self._held.pop()
            self._reader.feed("{", 0, self._pieces)


class MistralParser(CallParser):
    """`[TOOL_CALLS]` and a JSON array of calls, or the newer `[TOOL_CALLS]name[ARGS]{...}`, with or without [ARGS]."""

    opener = MISTRAL_OPENER

    def __init__(self, most_calls: int | None = None, texts: Texts | None = None, *, alone: bool = False) -> None:
        super().__init__(most_calls, texts, alone=alone)
        self._name = ""
        self._in_array = False

    def _opened(self) -> None:
        self._name = ""
        self._in_array = False
        self._mode = self._begin

    def _begin(self, text: str, position: int) -> int:
        """What follows the opener: an array, one object, or a name."""
        spaces = _SPACES.match(text, position)
        if spaces is not None:
            self._held.append(spaces[0])
            return spaces.end()
        if text[position] == "[":
            self._held.append("[")
            self._in_array = True
            self._begin_object()
            return position + 1
        if text[position] == "{":
            self._begin_object()
        else:
            self._mode = self._read_name
        return position

    def _read_name(self, text: str, position: int) -> int:
        name = _NAME.match(text, position)
        if name is not None:
            self._name += name[0]
            self._held.append(name[0])
            if len(self._name) > _MOST_NAME_CHARACTERS:
                self._to_text()
            return name.end()
        if not is_tool_name(self._name):
            self._to_text()
        else:
            self._expect_one_of("{", MISTRAL_ARGUMENTS, MISTRAL_ID)
        return position

    def _read_id(self, text: str, position: int) -> int:
        """The identifier that some models give a call; the server gives its own."""
        name = _NAME.match(text, position)
        if name is None:
            self._expect_one_of("{", MISTRAL_ARGUMENTS)
            return position
        self._held.append(name[0])
        return name.end()

    def _found(self, token: str) -> None:
        if token == ",":
            self._begin_object()
        elif token == "]":
            self._held.clear()
            self._mode = self._text
        elif token == MISTRAL_ID:
            self._mode = self._read_id
        else:
            self._begin_call(ArgumentsReader(self._calls, self._name))
            if token == "{":
                self._held.pop()
                self._object("{", 0)

    def _call_ended(self) -> None:
        if self._in_array:
            self._expect_one_of(",", "]")
        else:
            self._mode = self._text
