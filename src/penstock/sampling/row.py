"""What the executor keeps of a sequence between steps: everything that is a function of its token values."""

from collections.abc import Sequence
from typing import Protocol

from penstock.core.plan import BeginRow, FinishReason
from penstock.sampling.bad_words import BadWords
from penstock.sampling.choice import Choice, constants_of, likeliest
from penstock.sampling.history import TokenHistory
from penstock.sampling.pipeline import EditingStep, Forced, editing_steps


class GrammarState(Protocol):
    """How far a row's output has come in its grammar."""

    def fork(self) -> "GrammarState":
        """The same, to go on by itself."""

    def advance(self, token: int) -> bool:
        """Take the next token; whether the output is complete, so that nothing can follow. Raises NothingFits."""


class StopSearch(Protocol):
    """Looks for a row's stop strings in its text, token by token."""

    def fork(self) -> "StopSearch":
        """The same, to go on by itself."""

    def find(self, token: int) -> str | None:
        """Take the next output token; the stop string that ends the output with it, min_tokens being respected."""


class ReasoningWatch(Protocol):
    """Follows a row's reasoning, and ends it when there has been enough.

    Attributes:
        forced: the token that must come next, None while any may.
    """

    forced: int | None

    def advance(self, token: int) -> None:
        """Take the next token of the output."""


class RowState:
    """One sequence: its parameters, random numbers, penalty counts, stop matching and output position.

    It survives preemption and advances on verified tokens only.

    Attributes:
        sequence: the scheduler's handle.
        params: as in the request, with the seed resolved.
        position: output tokens so far, which is the index of the next one.
        editing: pipeline steps that change logits at this position.
        grammar: what the output must look like, if it must.
        continuations: of a beam, how many tokens may come next, which its choice lists; 0 where there are no beams.
    """

    __slots__ = (
        "_constants",
        "_endings",
        "_eos",
        "_free",
        "_history",
        "_plain",
        "_reasoning",
        "_stops",
        "_stop_tokens",
        "_words",
        "continuations",
        "editing",
        "grammar",
        "params",
        "position",
        "sequence",
    )

    def __init__(
        self,
        begin: BeginRow,
        prompt_token_ids: Sequence[int],
        *,
        stops: StopSearch | None = None,
        grammar: GrammarState | None = None,
        reasoning: ReasoningWatch | None = None,
    ) -> None:
        """`prompt_token_ids` are the request's, for forks too; the others are needed where it has such."""
        params = begin.sampling
        if params.seed is None and not params.greedy:
            raise ValueError("the seed must be resolved before a row begins")
        self._stops = stops
        self._reasoning = reasoning
        self._eos = frozenset() if params.ignore_eos else frozenset(begin.eos_token_ids)
        self._stop_tokens = frozenset(params.stop_token_ids)
        self._endings = sorted({*begin.eos_token_ids, *params.stop_token_ids})
        self.continuations = 0
        self._constants = constants_of(params, begin.sample_index)
        if params.beam is not None:
            # Where each beam's likeliest tokens all end it, there are still as many that go on.
            self.continuations = params.beam.width * (1 + max(1, len(self._eos | self._stop_tokens)))
            self._constants = likeliest(max(self.continuations, params.logprobs or 0))
        # A repetition penalty looks at the prompt as well, the others at the output only.
        seen = prompt_token_ids if params.repetition_penalty != 1.0 else ()
        self._history = TokenHistory(seen) if params.has_penalties else None
        self._words = BadWords(params.bad_words_ids) if params.bad_words_ids else None
        depends = self._history is not None or self._words is not None
        self._plain = not depends and stops is None and params.min_tokens == 0
        self._free = not depends and grammar is None and reasoning is None and params.beam is None
        self.grammar = grammar
        self.sequence = begin.sequence
        self.params = params
        self.position = 0
        self.editing: tuple[EditingStep, ...] = ()
        self._choose_editing()

    def _choose_editing(self) -> None:
        if self._reasoning is not None and self._reasoning.forced is not None:
            self.editing = (Forced(self._reasoning.forced),)
            return
        endings = self._endings if self.position < self.params.min_tokens else ()
        self.editing = editing_steps(self.params, self._history, endings, self._words)

    def fork(self, sequence: int) -> "RowState":
        """The same for another sequence, to go on by itself; the row has no budget of reasoning."""
        # A step does this for each beam, and `copy` takes several times as long.
        other = RowState.__new__(RowState)
        for name in RowState.__slots__:
            setattr(other, name, getattr(self, name))
        other.sequence = sequence
        other._stops = None if self._stops is None else self._stops.fork()
        other.grammar = None if self.grammar is None else self.grammar.fork()
        if self._history is not None or self._words is not None:
            other._history = None if self._history is None else self._history.fork()
            other._words = None if self._words is None else self._words.fork()
            other._choose_editing()
        return other

    @property
    def foreseeable(self) -> bool:
        """Whether further tokens are chosen in a way that does not depend on those between."""
        return self._free and not self.editing

    def choice(self, index: int, mask: int = -1, ahead: int = 0) -> Choice:
        """How the token at the current output position is chosen, from row `index` of the logits under mask `mask`.

        Of a row that is foreseeable, the one `ahead` positions further too.
        """
        return Choice(index, mask, self.position + ahead, *self._constants)

    def advance(self, token: int) -> tuple[FinishReason | None, int | str | None]:
        """Take a verified output token; whether it ends the output ("stop"), and by which stop string or token id.

        At end-of-sequence the second value is None, and where a grammar's output is complete, unless the same token
        ends it otherwise. Running out of max_tokens is not seen here. Raises NothingFits where a grammar cannot go on.
        """
        complete = self.grammar is not None and token not in self._eos and self.grammar.advance(token)
        otherwise: tuple[FinishReason | None, None] = ("stop" if complete else None, None)
        self.position += 1
        if self._reasoning is not None:
            forced = self._reasoning.forced
            self._reasoning.advance(token)
            if self._reasoning.forced != forced:
                self._choose_editing()
        if self._plain:
            if token in self._eos:
                return "stop", None
            return ("stop", token) if token in self._stop_tokens else otherwise
        if self._history is not None:
            self._history.add(token)
        if self._words is not None:
            self._words.add(token)
        if self.position == self.params.min_tokens:
            self._choose_editing()
        if self.position >= self.params.min_tokens:
            if token in self._eos:
                return "stop", None
            if token in self._stop_tokens:
                return "stop", token
        # The search sees text before min_tokens too: a stop string that begins there may be completed later.
        found = None if self._stops is None else self._stops.find(token)
        return otherwise if found is None else ("stop", found)
