"""The only place where drafts are accepted, by one of two rules.

Coupled acceptance, the default: at every position the target's token is chosen as it would be without any draft, by the
request's own random numbers for that position, and a draft counts where it is that token. So the output is the same,
token by token and bit by bit, for any proposer and any number of drafts; a draft that is chosen with the same random
numbers is often right at any temperature (Daliri et al., "Coupling without communication and drafter-invariant
speculative decoding", 2024).

Rejection sampling keeps drafts more often, and the target's distribution, but not its tokens: see `rejection.py`. At
temperature 0, where there is one token that may come, the two rules are the same.

Of a tree of drafts, the one that is the target's token counts, wherever it stands; trees are for coupled acceptance.

What depends on the tokens before it (penalties, grammars, stop strings, min_tokens) sees at each position what it would
have seen, since a row's state goes on with each token that is accepted, and never with one that is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from penstock.core.errors import NothingFits, RowFailed
from penstock.core.plan import Gained, SampleResult, TokenLogprobs
from penstock.sampling.choice import ChosenFields
from penstock.sampling.distribution import Distribution, certain
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Failure, Place, Sampler, take
from penstock.speculation.rejection import judged
from penstock.speculation.tree import chain_length
from penstock.stepping.rows import NEWEST


@dataclass(slots=True, eq=False)
class DraftedRow:
    """A row whose next tokens are to be chosen.

    Attributes:
        state: of the row.
        first: which row of the logits its next token comes from.
        drafts: what may come next.
        drawn_from: for each draft what it was drawn from, where the rule has to know; None: it was certain.
        parents: of a tree of drafts, see `tree.py`; None: each stands behind the one before.
        rows: which row of the logits the token behind each draft comes from; None: they follow the first, in order.
        tokens, logprobs: what it has got so far.
        path: the places of the drafts among the tokens.
        newest: what it got last, which says how it ended.
    """

    state: RowState
    first: int
    drafts: Sequence[int] = ()
    drawn_from: Sequence[Distribution] | None = None
    parents: Sequence[int] | None = None
    rows: Sequence[int] | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    newest: Gained | None = None

    @property
    def at(self) -> int:
        """The draft behind which the next token is chosen."""
        return self.path[-1] if self.path else NEWEST

    @property
    def next_draft(self) -> int | None:
        """The draft at the position that is chosen next, where there is but one."""
        place = len(self.tokens)
        return self.drafts[place] if place < len(self.drafts) else None

    @property
    def is_judged(self) -> bool:
        """Whether chance can decide about its next draft."""
        return self.next_draft is not None and self.state.params.temperature > 0

    @property
    def goes_on(self) -> bool:
        """Whether it has got nothing yet, or drafts only, and has not ended."""
        return self.newest is None or (self.newest.ending is None and len(self.path) == len(self.tokens))

    def places(self) -> dict[int, Place]:
        """Where the next token is chosen, by the draft before it, and those behind that can be chosen at once."""
        at = self.at
        if not self.state.foreseeable:
            return {at: Place(self.state, self.row_behind(at), 0)}
        if self.parents is None:
            return {
                place: Place(self.state, self.row_behind(place), place - at) for place in range(at, len(self.drafts))
            }
        ahead = {at: 0}
        for place, parent in enumerate(self.parents):
            if parent in ahead and place not in ahead:
                ahead[place] = ahead[parent] + 1
        return {place: Place(self.state, self.row_behind(place), steps) for place, steps in ahead.items()}

    def take(self, chosen: ChosenFields | Failure) -> None:
        """Take the next token of the row, or why there is none."""
        self.newest = take(self.state, chosen)
        for token in self.newest.tokens:
            self.tokens.append(token)
            place = self._behind(self.at, token)
            if place is not None:
                self.path.append(place)
        self.logprobs += self.newest.logprobs or ()

    def result(self) -> SampleResult:
        """All that it has got."""
        assert self.newest is not None, "each row gets a result"
        if not self.drafts:
            return SampleResult(self.state.sequence, self.newest)
        drafted, likeliest = len(self.drafts), len(self.drafts)
        if self.parents is not None:
            likeliest = chain_length(self.parents)
        # A draft that ends the output counts as what is chosen behind drafts.
        strayed = sum(place >= likeliest for place in self.path[: len(self.tokens) - 1])
        return SampleResult(
            self.state.sequence,
            Gained(self.tokens, self.newest.ending, self.logprobs or None),
            drafted=drafted,
            beside=drafted - likeliest,
            strayed=strayed,
        )

    def row_behind(self, place: int) -> int:
        """The row of the logits that say what stands behind a draft."""
        if place == NEWEST:
            return self.first
        return self.first + 1 + place if self.rows is None else self.rows[place]

    def _behind(self, place: int, token: int) -> int | None:
        """The draft behind another that is this token."""
        last = len(self.drafts) if self.parents is not None else min(place + 2, len(self.drafts))
        for child in range(place + 1, last):
            if self.drafts[child] == token and (self.parents is None or self.parents[child] == place):
                return child
        return None


def verify(
    sampler: Sampler, logits: Tensor, rows: Sequence[DraftedRow], *, rejects: bool = False
) -> list[SampleResult]:
    """The tokens of each row: those of its drafts that are accepted, and one behind them.

    Positions are decided one after the other, for all rows together, or at once where one does not depend on another.
    A row that ends gets nothing more. `rejects` accepts by rejection sampling.
    """
    if not any(row.drafts for row in rows):
        # As below, without what only drafts need: in a large batch, that is a part of each step's time.
        gains = sampler.sample(logits, [row.state for row in rows], [row.first for row in rows])
        return [SampleResult(row.state.sequence, gained) for row, gained in zip(rows, gains, strict=True)]
    open_rows = list(rows)
    while open_rows:
        by_chance = [row for row in open_rows if rejects and row.is_judged]
        asked = [(row, row.places()) for row in open_rows if not (rejects and row.is_judged)]
        chosen = iter(sampler.choose(logits, [place for _, places in asked for place in places.values()]))
        for row, places in asked:
            found = dict(zip(places, chosen, strict=False))
            # What was chosen for positions that are not reached is left.
            while row.goes_on and row.at in found:
                row.take(found.pop(row.at))
        for row in by_chance:
            row.take(_judge(sampler, logits, row))
        open_rows = [row for row in open_rows if row.goes_on]
    return [row.result() for row in rows]


def _judge(sampler: Sampler, logits: Tensor, row: DraftedRow) -> ChosenFields | Failure:
    place, draft = len(row.tokens), row.next_draft
    assert draft is not None, "only drafts are judged"
    drawn_from = certain(draft) if row.drawn_from is None else row.drawn_from[place]
    try:
        target = sampler.target(logits, row.state, row.row_behind(row.at))
        return target.chosen(row.state, judged(target.distribution, draft, drawn_from, row.state.choice(0)))
    except (RowFailed, NothingFits) as failure:
        return failure
