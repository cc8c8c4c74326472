"""The rows of a step, and where their tokens and drafts stand in its batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.plan import RowPlan

NEWEST = -1
"""The newest token that is known of a sequence, before its drafts."""

Place = tuple[int, int]
"""A sequence, and one of its drafts, or `NEWEST`."""


# Not frozen, since one is made for each row of each step, and that takes three times as long.
@dataclass(slots=True)
class StepRow:
    """A row of a step; it stays as it is.

    Attributes:
        plan: with its drafts, as if they were known.
        table: its row of the block tables.
        drafts: which of its sequence's drafts its last tokens are.
        before: for a branch that is not the likeliest, the drafts before them; None for its sequence's own row.
    """

    plan: RowPlan
    table: int
    drafts: Sequence[int] = ()
    before: Sequence[int] | None = None

    @property
    def count(self) -> int:
        """How many positions it has."""
        return self.plan.count

    @property
    def logit_rows(self) -> int:
        """How many of its positions have logits."""
        if self.before is not None:
            return len(self.drafts)
        scored = self.plan.scored[1] - self.plan.scored[0]
        return scored + (1 + len(self.drafts) if self.plan.samples else 0)


def places_of(rows: Sequence[StepRow], counts: Sequence[int]) -> dict[Place, int]:
    """Where newest tokens and drafts stand in a list with `counts` entries for each row, theirs being the last."""
    places: dict[Place, int] = {}
    end = 0
    for row, count in zip(rows, counts, strict=True):
        end += count
        sequence, first = row.plan.sequence, end - len(row.drafts)
        if row.before is None and count > len(row.drafts):
            places[sequence, NEWEST] = first - 1
        for place, draft in enumerate(row.drafts, first):
            places[sequence, draft] = place
    return places


def shares(rows: Sequence[StepRow]) -> list[int]:
    """Pairs of a token and a branch whose context it belongs to, flat, as `StepBatch.shared` has them."""
    if all(row.before is None for row in rows):
        return []
    tokens = places_of(rows, [row.plan.count for row in rows])
    return [
        number
        for place, row in enumerate(rows)
        if row.before is not None
        for draft in (NEWEST, *row.before)
        for number in (tokens[row.plan.sequence, draft], place)
    ]
