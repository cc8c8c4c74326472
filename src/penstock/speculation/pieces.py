"""What a model that drafts computes in a step, as a batch."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.kernels.batch import StepBatch
from penstock.stepping.gather import make_batch
from penstock.stepping.tables import BlockTables


class Piece(NamedTuple):
    """A part of one sequence.

    Attributes:
        start: its first position.
        tokens: from there on.
        table: the sequence's row of the block tables.
        guesses: how many of the tokens, the last ones, are guessed.
    """

    start: int
    tokens: list[int]
    table: int
    guesses: int = 0

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.start + len(self.tokens)


def gather_pieces(
    pieces: Sequence[Piece], tables: BlockTables, groups: Sequence[int], further: int | None = None
) -> tuple[StepBatch, list[int]]:
    """The batch of all pieces, and in which order they are in it.

    Logits are wanted where they are to be decoded `further`: of the newest token and the guesses behind it. `groups`
    are those of the tables that the model uses.
    """
    order = sorted(range(len(pieces)), key=lambda place: len(pieces[place].tokens) > 1)
    rows = [pieces[place] for place in order]
    tokens: list[int] = []
    logit_rows: list[int] = []
    for piece in rows:
        tokens += piece.tokens
        if further is not None:
            logit_rows += range(len(tokens) - 1 - piece.guesses, len(tokens))
    batch = make_batch(
        starts=[piece.start for piece in rows],
        counts=[len(piece.tokens) for piece in rows],
        tokens=tokens,
        logit_rows=logit_rows,
        table_rows=[piece.table for piece in rows],
        tables=tables,
        groups=groups,
        further=further or 0,
    )
    return batch, order
