"""A plan in the making, and what its commit has to know of it."""

from dataclasses import dataclass, field

from penstock.core.plan import BeginRow, BlockCopy, RowPlan, StepPlan
from penstock.scheduler.sequence import Sequence


@dataclass(slots=True)
class PlannedRow:
    """A planned row, as its commit needs it.

    Attributes:
        sequence: whose.
        epoch: its sequence's when it was planned.
        end: the position behind it.
        samples: who gets a token from its last position.
    """

    sequence: Sequence
    epoch: int
    end: int
    samples: tuple[Sequence, ...]


@dataclass(slots=True)
class Draft:
    """A plan in the making.

    Attributes:
        number: the plan's.
        budget, scores: positions that may still be computed, and scored.
        rows, begin: of the plan so far.
        committed_by: its rows, for the commit.
    """

    number: int
    budget: int
    scores: int
    rows: list[RowPlan] = field(default_factory=list)
    begin: list[BeginRow] = field(default_factory=list)
    committed_by: list[PlannedRow] = field(default_factory=list)

    def plan(self, ended: tuple[int, ...], copies: tuple[BlockCopy, ...]) -> StepPlan:
        """The finished plan."""
        return StepPlan(number=self.number, rows=tuple(self.rows), begin=tuple(self.begin), end=ended, copies=copies)
