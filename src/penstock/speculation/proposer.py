"""What proposers of drafts have in common."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.core.plan import RowPlan
from penstock.runtime.storage import KVStorage
from penstock.sampling.row import RowState


class Wanted(NamedTuple):
    """Drafts that are wanted for one row.

    Attributes:
        sequence: whose.
        depth: at most so many tokens.
        state: how its next tokens will be chosen.
        table: its row of the block tables.
    """

    sequence: int
    depth: int
    state: RowState
    table: int


class Proposer(Protocol):
    """Guesses what comes next; what it says is never more than a guess.

    It is told of each sequence from its first step to its last, in order, and of verified tokens only.

    Attributes:
        storage: where it has keys and values of its own, in the same blocks as the target; None where it has none.
    """

    storage: KVStorage | None

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """A sequence begins with this prompt."""

    def follow(self, rows: Sequence[RowPlan], table_rows: Sequence[int]) -> None:
        """The target computes these rows, which have these rows of the block tables, in the step that begins."""

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        """For each row the tokens that may come next, in order; none where it has no guess."""

    def observe(self, sequence: int, tokens: Sequence[int]) -> None:
        """The sequence has gained these tokens."""

    def forget(self, sequence: int) -> None:
        """The sequence has ended; also where it never began."""
