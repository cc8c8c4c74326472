"""What a provider tells of an answer, and how writers of answers take it."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.core.plan import FinishReason
from penstock.text.output_format import Parsing, TokenCount
from penstock.text.pieces import Piece
from penstock.text.table import TokenStream


class Usage(NamedTuple):
    """Tokens, as a provider counts them; those of the cache are some of the prompt's, reasoning some of the output."""

    prompt: int
    cached: int
    output: int
    reasoning: int = 0


class Step(NamedTuple):
    """What one event says.

    Attributes:
        sample: the answer that it is about, where several were asked for.
        pieces: more of it.
        call_id: of the call that begins with these pieces, if one does.
        finish, stop: why it has ended, and the stop string that ended it.
        usage: of all answers, as far as it is told.
    """

    sample: int = 0
    pieces: Sequence[Piece] = ()
    call_id: str = ""
    finish: FinishReason | None = None
    stop: str | None = None
    usage: Usage | None = None


class ToldPieces:
    """The parser of an answer whose pieces its provider tells: there is no text to cut."""

    done = False
    calls_whole = True

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def put(self, pieces: Sequence[Piece]) -> None:
        """Pieces that come out with the next text, which is empty."""
        self._pieces.extend(pieces)

    def feed(self, text: str) -> Sequence[Piece]:
        """The pieces that have come since; the text is not looked at."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self) -> Sequence[Piece]:
        """The pieces that are left when the answer has ended."""
        return self.feed("")


class ToldReasoning:
    """How many tokens of an answer are reasoning, by what its provider says at its end."""

    over = False

    def __init__(self, told: "ToldParsing") -> None:
        self._told = told
        self.tokens = 0

    def take(self, tokens: Iterable[int]) -> None:
        """Tokens are not looked at: their ids are not known."""

    def finish(self) -> None:
        """The answer has ended: what its provider has said of it is known."""
        self.tokens, self._told.reasoned[:] = sum(self._told.reasoned), []


class ToldParsing(Parsing, frozen=True, kw_only=True):
    """Of a request that a provider answers.

    Attributes:
        parsers: of its answers, in order.
        call_ids: of calls that have yet to begin.
        reasoned: tokens of all answers that were reasoning, once that is told.
    """

    parsers: list[ToldPieces] = []
    call_ids: deque[str] = deque()
    reasoned: list[int] = []

    def parser(self) -> ToldPieces:
        """The parser of the next answer."""
        self.parsers.append(ToldPieces())
        return self.parsers[-1]

    def reasoning_count(self, stream: TokenStream | None) -> TokenCount | None:
        """What counts an answer's tokens of reasoning."""
        return ToldReasoning(self)

    def call_id(self, name: str) -> str:
        """The identifier that the provider has given the call, by which it knows it again."""
        return self.call_ids.popleft()
