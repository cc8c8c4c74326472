"""How many of an output's tokens are reasoning."""

import codecs
from collections import deque
from collections.abc import Iterable

from penstock.text.reasoning import THINK, ReasoningParser
from penstock.text.table import TokenStream


class ReasoningCount:
    """Counts the tokens between the marks of an output's reasoning; the marks themselves are not counted.

    A token counts if a character between the marks begins or goes on with it, or if it has no text and stands there.
    The count is a function of the tokens alone: it depends neither on how they are handed over, nor on what is shown.

    Attributes:
        tokens: those that are surely reasoning.
        over: the rest cannot be reasoning.
    """

    __slots__ = ("_characters", "_parser", "_places", "_position", "_stream", "over", "tokens")

    def __init__(self, stream: TokenStream, *, opened: bool, marks: str = THINK) -> None:
        """`stream` gives the output's text with the marks of reasoning. `opened`: the prompt has opened the block.

        `marks` is a name in `MARKS`.
        """
        self._stream = stream
        self._parser = ReasoningParser(opened=opened, shown=False, marks=marks)
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0
        # For each token that is undecided, where its text begins and ends.
        self._places: deque[tuple[int, int]] = deque()
        self.tokens = 0
        self.over = False

    def take(self, tokens: Iterable[int]) -> None:
        """Take the next tokens of the output."""
        for token in tokens:
            if self.over:
                return
            piece = self._stream.next(token)
            text = self._characters.decode(piece)
            start, self._position = self._position, self._position + len(text)
            # Where a character goes on with the next token, it stands there for this one too.
            self._places.append((start, self._position if text or not piece else start + 1))
            self._parser.feed(text)
            self._settle(final=self._parser.answers)

    def finish(self) -> None:
        """No more tokens come. A block that is still open goes to the end."""
        if not self.over:
            inside = self._parser.inside
            self._parser.feed(self._characters.decode(b"", final=True))
            self._parser.finish()
            if inside:
                begins = self._parser.begins or 0
                self.tokens += sum(_overlaps(place, begins, self._position + 1) for place in self._places)
                self._places.clear()
            self._settle(final=True)

    def _settle(self, *, final: bool) -> None:
        begins, ends = self._parser.begins, self._parser.ends
        while self._places and (final or begins is not None):
            counts = begins is not None and _overlaps(self._places[0], begins, ends)
            if not (counts or final or self._places[0][1] <= ends):
                break
            self.tokens += counts
            self._places.popleft()
        self.over = final


def _overlaps(place: tuple[int, int], begins: int, ends: int) -> bool:
    """Whether a token's place has a part between the marks; one without length has to stand there."""
    start, end = place
    return begins <= start <= ends if start == end else max(start, begins) < min(end, ends)
