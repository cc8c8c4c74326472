"""What a chat model's output consists of: text for the reader, reasoning, and calls of tools."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the reader."""

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
    """

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; what is certain now."""

    def finish(self) -> Sequence[Piece]:
        """The text has ended; the rest. What began like a call but is none is content."""


class PlainParser:
    """All of the text is content."""

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; what is certain now."""
        return [Content(text)] if text else []

    def finish(self) -> Sequence[Piece]:
        """The text has ended; nothing was held back."""
        return []
