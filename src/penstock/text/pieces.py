"""What a chat model's output consists of: text for the reader, reasoning, and calls of tools."""

import itertools
from collections.abc import Sequence
from typing import Protocol

import msgspec


class Content(msgspec.Struct, frozen=True):
    """A piece of an output that is text for the reader."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text that the model wrote for itself."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call of a tool begins: its place among the answer's calls, from 0 on, and the tool's name."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of the arguments of call `index`, which all together are the text of a JSON object."""

    index: int
    text: str


Piece = Content | Reasoning | CallStart | CallArguments


class OutputParser(Protocol):
    """Cuts one sample's text into pieces, as it comes.

    However the text is cut, the pieces add up to the same: contents and reasonings joined, and for every call its name
    and arguments.

    Attributes:
        done: what follows is left out, so that nothing more needs to be fed.
        calls_whole: no call that was told lacks a part of its arguments, so far.
    """

    @property
    def done(self) -> bool: ...

    @property
    def calls_whole(self) -> bool: ...

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; what is certain now."""

    def finish(self) -> Sequence[Piece]:
        """The text has ended; the rest. What began like a call but is none is content."""


class PlainParser:
    """All of the text is content."""

    done = False
    calls_whole = True

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; what is certain now."""
        return [Content(text)] if text else []

    def finish(self) -> Sequence[Piece]:
        """The text has ended; nothing was held back."""
        return []


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, neighbours of one kind made one."""
    result: list[Piece] = []
    for _, run in itertools.groupby(pieces, key=lambda piece: (type(piece), getattr(piece, "index", None))):
        first, *others = run
        if others and not isinstance(first, CallStart):
            texts = [piece.text for piece in others if not isinstance(piece, CallStart)]
            first = msgspec.structs.replace(first, text="".join([first.text, *texts]))
        result.append(first)
    return result


def beginning_at_end(text: str, token: str, start: int = 0) -> int:
    """How many characters at the end of `text`, from `start` on, may be the beginning of `token`."""
    for size in range(min(len(token) - 1, len(text) - start), 0, -1):
        if text.endswith(token[:size]):
            return size
    return 0
