"""What a model that drafts computes in a step, as a batch."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.plan import RowPlan
from penstock.kernels.batch import StepBatch
from penstock.runtime.gather import gather_batch, order_rows
from penstock.runtime.tables import BlockTables


class Piece(NamedTuple):
    """A part of one sequence.

    Attributes:
        start: its first position.
        tokens: from there on.
        table: the sequence's row of the block tables.
        guesses: how many of the tokens, the last ones, somebody has guessed.
    """

    start: int
    tokens: list[int]
    table: int
    guesses: int = 0

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.start + len(self.tokens)


def gather_pieces(
    pieces: Sequence[Piece], tables: BlockTables, groups: Sequence[int], further: int | None = None
) -> tuple[StepBatch, list[int]]:
    """The batch of all pieces, and in which order they are in it.

    Logits are wanted where they are to be decoded `further`: of the newest token and the guesses behind it. `groups`
    are those of the tables that the model uses.
    """
    plans = []
    for place, piece in enumerate(pieces):
        wanted = () if further is None else (place,)
        plans.append(
            RowPlan(place, piece.start, len(piece.tokens), piece.tokens, None, wanted, (), draft_depth=piece.guesses)
        )
    rows = order_rows(plans)
    order = [row.sequence for row in rows]
    tokens = [token for row in rows for token in row.tokens]
    table_rows = [pieces[place].table for place in order]
    return gather_batch(rows, tokens, table_rows, tables, groups, further or 0), order
