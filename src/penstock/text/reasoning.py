"""Reasoning in a model's text: the block at its beginning that is not for the reader."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from penstock.text.pieces import OutputParser, Piece, PlainParser, Reasoning, beginning_at_end


class Marks(NamedTuple):
    """What stands around a block of reasoning.

    Attributes:
        begin, end: texts that may be special tokens.
        closing: how models end a block, with the line breaks that they write around the mark.
        name: text behind the first, which tells the block from others between the same marks.
    """

    begin: str
    end: str
    closing: str
    name: str = ""

    @property
    def opener(self) -> str:
        """All that begins a block."""
        return self.begin + self.name


THINK = "think"
MARKS: Mapping[str, Marks] = MappingProxyType(
    {
        THINK: Marks("<think>", "</think>", "\n</think>\n\n"),
        "gemma4": Marks("<|channel>", "<channel|>", "\n<channel|>", name="thought\n"),
    }
)

Before = Literal["nothing", "reasoning", "open reasoning"]
"""What may come before the answer: nothing, a block of reasoning, or, and must, the rest of an open one."""

_SPACE = " \t\r\n"


class ReasoningParser:
    """What is between the marks at the answer's beginning is reasoning; another parser cuts what follows.

    A block that never ends is reasoning to the end. White space around the block, and at its edges, belongs to it.

    Attributes:
        begins, ends: where in the text, in characters, what is between the marks begins, None before it is known; and
            how far it surely goes.
    """

    def __init__(
        self, inner: OutputParser | None = None, *, opened: bool = False, shown: bool = True, marks: str = THINK
    ) -> None:
        """`opened`: the prompt has opened the block. Reasoning that is not to be `shown` is left out.

        `marks` is a name in `MARKS`.
        """
        self._inner = PlainParser() if inner is None else inner
        self._opener, self._closer = MARKS[marks].opener, MARKS[marks].end
        self._opened = opened
        self._shown = shown
        # White space, and behind it what may be the beginning of a marker: taken and not told.
        self._space: list[str] = []
        self._partial = ""
        self._told = False
        self._pieces: list[Piece] = []
        self._mode: Callable[[str, int], int] = self._begin
        # Characters of earlier texts.
        self._fed = 0
        self.begins: int | None = None
        self.ends = 0

    @property
    def done(self) -> bool:
        """Whether what follows is of no interest."""
        return self._inner.done

    @property
    def calls_whole(self) -> bool:
        """Whether no call that was told lacks a part of its arguments, so far."""
        return self._inner.calls_whole

    @property
    def inside(self) -> bool:
        """Whether the text is inside of the block."""
        return self._mode == self._think or (self._opened and self._mode == self._begin)

    @property
    def answers(self) -> bool:
        """Whether the block is over, or there is none."""
        return self._mode in (self._skip, self._answer)

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; what is certain now."""
        if self._mode == self._answer:
            return self._inner.feed(text)
        position = 0
        while position < len(text):
            position = self._mode(text, position)
        self._fed += len(text)
        return self._take_pieces()

    def finish(self) -> Sequence[Piece]:
        """The text has ended; the rest."""
        if self._mode == self._think or (self._mode == self._begin and self._opened):
            if self._partial:
                self._tell(self._partial)
            self.begins, self.ends = self.begins or 0, self._fed
        elif self._mode == self._begin:
            self._pieces += self._inner.feed("".join(self._space) + self._partial)
        self._partial, self._mode = "", self._answer
        self._pieces += self._inner.finish()
        return self._take_pieces()

    # Modes: each takes text from a position on, and returns the place behind what it took.

    def _begin(self, text: str, position: int) -> int:
        """Before anything but white space: does the answer begin with a block?"""
        char = text[position]
        if not self._partial and char in _SPACE:
            self._space.append(char)
            return position + 1
        partial = self._partial + char
        if self._opener.startswith(partial):
            self._partial = partial
            if partial == self._opener:
                self._enter()
                self.begins = self.ends = self._fed + position + 1
            return position + 1
        if self._opened:
            self._mode = self._think
            self.begins = 0
            self._space.clear()
        else:
            self._mode = self._answer
            self._pieces += self._inner.feed("".join(self._space) + self._partial)
            self._partial = ""
        return position

    def _enter(self) -> None:
        self._mode = self._think
        self._space.clear()
        self._partial = ""

    def _think(self, text: str, position: int) -> int:
        """Inside of the block."""
        seen = self._partial + text[position:]
        start = self._fed + position - len(self._partial)
        where = seen.find(self._closer)
        if where >= 0:
            self.ends = start + where
            taken = where + len(self._closer) - len(self._partial)
            self._partial = ""
            self._tell(seen[:where].rstrip(_SPACE))
            self._space.clear()
            self._mode = self._skip
            return position + taken
        cut = len(seen) - beginning_at_end(seen, self._closer)
        self._partial = seen[cut:]
        self.ends = start + cut
        shown = seen[:cut].rstrip(_SPACE)
        self._tell(shown)
        if len(shown) < cut:
            self._space.append(seen[len(shown) : cut])
        return len(text)

    def _skip(self, text: str, position: int) -> int:
        """White space behind the block."""
        if text[position] in _SPACE:
            return position + 1
        self._mode = self._answer
        return position

    def _answer(self, text: str, position: int) -> int:
        self._pieces += self._inner.feed(text[position:])
        return len(text)

    def _tell(self, text: str) -> None:
        """Tell reasoning, and the white space before it unless it is the first."""
        if not text:
            return
        told = "".join(self._space) + text if self._told else text.lstrip(_SPACE)
        self._space.clear()
        self._told = True
        if self._shown:
            self._pieces.append(Reasoning(told))

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def thought_rules(before: Before, special_markers: Mapping[str, int], marks: Marks = MARKS[THINK]) -> str:
    """What comes before an answer that is held to a grammar, as `Grammar.thought` has it.

    `special_markers` has the ids of those markers that are special tokens.
    """
    if before == "nothing":
        return ""
    opener, closer = (re.sub(r"([|/])", r"\\\1", text).replace("\n", r"\n") for text in (marks.opener, marks.end))
    rules = [rf"OPENING: /([ \t\r\n]|{opener})(?s:.*)/", r"BREAK: /[ \t\r\n]{1,4}/"]
    if marks.end in special_markers:
        # Special tokens are no text, so text ends where one comes; spelled out, it would end the block for the parser.
        end = f"UNCLOSED <[{special_markers[marks.end]}]>"
        rules += [rf"UNCLOSED: /(?s:.*)/ & ~/(?s:.*){closer}(?s:.*)/"]
    else:
        end = "closed"
        rules += [rf"closed[lazy]: /(?s:.*){closer}/"]
    if before == "open reasoning":
        rules.append(f"thought: {end} BREAK?")
    else:
        first = special_markers.get(marks.begin)
        name = f" {json.dumps(marks.name)}" if marks.name else ""
        begin = json.dumps(marks.opener) if first is None else f"<[{first}]>{name}"
        rules.append(f"thought: ({begin} {end} BREAK?)?")
    return "\n".join(rules)
