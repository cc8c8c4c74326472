"""The only place where drafts are accepted.

Coupled acceptance: at every position the target's token is chosen as it would be without any draft, by the request's
own random numbers for that position, and a draft counts where it is that token. So the output is the same, token by
token and bit by bit, whoever drafts and however many; a draft that is chosen with the same random numbers is often
right at any temperature (Daliri et al., "Coupling without communication and drafter-invariant speculative decoding",
2024). What depends on the tokens before it (penalties, grammars, stop strings, min_tokens) sees at each position what
it would have seen, since a row's state goes on with each token that is accepted, and never with one that is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from torch import Tensor

from penstock.core.plan import SampleResult
from penstock.sampling.row import RowState

Sample = Callable[[Tensor, Sequence[RowState], Sequence[int]], list[SampleResult]]
"""Chooses one token for each state from its row of the logits and advances the state."""


@dataclass(slots=True)
class DraftedRow:
    """A row whose next tokens are to be chosen.

    Attributes:
        state: of the row.
        first: which row of the logits its next token comes from; those behind the drafts follow, in order.
        drafts: what may come next.
        result: what it has got so far.
    """

    state: RowState
    first: int
    drafts: Sequence[int] = ()
    result: SampleResult | None = None


def verify(sample: Sample, logits: Tensor, rows: Sequence[DraftedRow]) -> list[SampleResult]:
    """The tokens of each row: those of its drafts that are right, and the one behind them.

    Positions are decided one after the other, for all rows together: a row is in the next round while its drafts have
    been right. One that ends is in none, so that nothing is chosen behind its end.
    """
    open_rows, place = list(rows), 0
    while open_rows:
        results = sample(logits, [row.state for row in open_rows], [row.first + place for row in open_rows])
        for row, result in zip(open_rows, results, strict=True):
            row.result = result if row.result is None else _joined(row.result, result)
        open_rows = [row for row in open_rows if _goes_on(row, place)]
        place += 1
    return [_told(row) for row in rows if row.result is not None]


def _goes_on(row: DraftedRow, place: int) -> bool:
    result = row.result
    assert result is not None, "each row has got one by now"
    return result.finish is None and place < len(row.drafts) and result.tokens[place] == row.drafts[place]


def _told(row: DraftedRow) -> SampleResult:
    assert row.result is not None
    return replace(row.result, drafted=len(row.drafts)) if row.drafts else row.result


def _joined(first: SampleResult, second: SampleResult) -> SampleResult:
    """One result of two, of which the second came later."""
    logprobs = first.logprobs if second.logprobs is None else [*(first.logprobs or ()), *second.logprobs]
    return replace(second, tokens=first.tokens + second.tokens, logprobs=logprobs)
