"""The end of a reasoning that has used up its budget."""

import codecs

from penstock.core.sampling import ReasoningBudget
from penstock.text.harmony import HARMONY, HarmonyParser
from penstock.text.reasoning import ReasoningParser
from penstock.text.table import TokenStream

# Bytes of a character of four that may still come when its first has come.
_MOST_TO_COMPLETE = 3


class ReasoningLimit:
    """Counts the tokens of an output's reasoning, and says which must come to end it.

    Attributes:
        forced: the token that must come next, None while any may.
    """

    __slots__ = ("_budget", "_characters", "_closing", "_over", "_parser", "_stream", "_used", "forced")

    def __init__(self, budget: ReasoningBudget, stream: TokenStream) -> None:
        """`stream` gives the text of the output as it is shown, with the marks of reasoning."""
        self._budget = budget
        self._stream = stream
        self._parser: HarmonyParser | ReasoningParser = (
            HarmonyParser(shown=False)
            if budget.marks == HARMONY
            else ReasoningParser(opened=budget.opened, shown=False, marks=budget.marks)
        )
        # Characters that are not complete may not be cut: no grammar goes on behind half of one.
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._used = 0
        self._closing = iter(budget.closing)
        self._over = False
        self.forced: int | None = None
        self._force_if_used_up()

    def advance(self, token: int) -> None:
        """Take the next token of the output."""
        if self._over:
            return
        if self.forced is not None:
            self.forced = next(self._closing, None)
            self._over = self.forced is None
            return
        inside = self._parser.inside
        self._parser.feed(self._characters.decode(self._stream.next(token)))
        # A mark that ends a message is none of its tokens.
        self._used += inside and self._parser.inside
        self._over = self._parser.answers
        self._force_if_used_up()

    def _force_if_used_up(self) -> None:
        excess = self._used - self._budget.tokens
        if not self._parser.inside or excess < 0:
            return
        pending, _ = self._characters.getstate()
        if not pending or excess >= _MOST_TO_COMPLETE:
            self.forced = next(self._closing)
