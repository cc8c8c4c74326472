"""What is kept of a sequence when it begins, with all that its sampling parameters need of text and grammars."""

from collections.abc import Sequence
from copy import copy

from penstock.core.plan import BeginRow
from penstock.core.sampling import SamplingParams
from penstock.sampling.grammar import Grammars
from penstock.sampling.row import RowState
from penstock.text.reasoning_limit import ReasoningLimit
from penstock.text.stops import StopMatcher
from penstock.text.table import TokenStream, TokenTable


class StopStrings:
    """Looks for a row's stop strings in its text, with the bytes and the matcher that the detokenizer uses too."""

    def __init__(self, table: TokenTable, params: SamplingParams) -> None:
        self._stream = _stream(table, params)
        self._matcher = StopMatcher(params.stop, params.min_tokens)

    def fork(self) -> "StopStrings":
        """The same, to go on by itself."""
        other = copy(self)
        other._stream, other._matcher = self._stream.fork(), self._matcher.fork()
        return other

    def find(self, token: int) -> str | None:
        """Take the next token; the stop string that it completes, if any."""
        return self._matcher.feed(self._stream.next(token))


class RowStates:
    """Begins the states of rows.

    Args:
        table: without one, rows cannot have stop strings or a budget of reasoning.
        grammars: without them, no row can have one.
    """

    def __init__(self, table: TokenTable | None, grammars: Grammars | None) -> None:
        self._table = table
        self._grammars = grammars

    def begin(self, begin: BeginRow, prompt: Sequence[int]) -> RowState:
        """The state of a sequence whose output has not begun."""
        params, table, grammars = begin.sampling, self._table, self._grammars
        stops = StopStrings(table, params) if params.stop and table is not None else None
        grammar = grammars.matcher(params.grammar) if params.grammar is not None and grammars is not None else None
        reasoning = None
        if params.reasoning_budget is not None and table is not None:
            reasoning = ReasoningLimit(params.reasoning_budget, _stream(table, params))
        return RowState(begin, prompt, stops=stops, grammar=grammar, reasoning=reasoning)


def _stream(table: TokenTable, params: SamplingParams) -> TokenStream:
    return TokenStream(table, params.skip_special_tokens, params.kept_special_tokens)
