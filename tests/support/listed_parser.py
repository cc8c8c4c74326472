"""A parser that finds in a text what the test tells it to."""

from collections.abc import Sequence

from penstock.text.pieces import CallArguments, CallStart, Content, Piece, Reasoning

THOUGHTS_AND_CALLS: tuple[tuple[Piece, ...], ...] = (
    (Reasoning("Let me "),),
    (Reasoning("see."), Content("I ")),
    (Content("look."), CallStart(0, "weather"), CallArguments(0, '{"city": "Ro')),
    (CallArguments(0, 'me"}'), CallStart(1, "time")),
    (),
    (CallArguments(1, "{}"),),
)


class ListedParser:
    """Whatever text comes, each `feed` yields the next pieces of a list, and `finish` the rest."""

    done = False
    calls_whole = True

    def __init__(self, pieces: Sequence[Sequence[Piece]] = THOUGHTS_AND_CALLS) -> None:
        self._pieces = list(pieces)

    def feed(self, text: str) -> Sequence[Piece]:
        return self._pieces.pop(0) if self._pieces else ()

    def finish(self) -> Sequence[Piece]:
        rest = [piece for pieces in self._pieces for piece in pieces]
        self._pieces = []
        return rest
