"""Drafts from a model that is smaller, or from the first layers of the same one.

Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023; Chen et al., "Accelerating
large language model decoding with speculative sampling", 2023. It chooses tokens with the request's own random numbers,
as the target will (`verifier.py`), so that the two agree often at any temperature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from penstock.core.plan import RowPlan
from penstock.kernels.batch import StepBatch
from penstock.sampling.sampler import Sampler
from penstock.speculation.decoding import Decode
from penstock.speculation.pieces import Piece, gather_pieces
from penstock.speculation.proposer import NONE, Proposal, Wanted, agreeing, draft_choice
from penstock.stepping.model import Model
from penstock.stepping.storage import Blocks, Pairs
from penstock.stepping.tables import BlockTables, Int32

# Positions that are made up for in one step: a long prompt must not hold up every sequence's next token.
CATCH_UP = 512


@dataclass(slots=True)
class _Track:
    """A sequence as the draft model has it: its tokens, and of how many positions there are keys and values.

    They may reach into what was guessed behind the tokens. None are taken to be there until drafts are wanted; then the
    blocks say. It is `placed` once the target has computed something of it.
    """

    tokens: list[int]
    computed: int = 0
    placed: bool = False
    guesses: list[int] = field(default_factory=list)

    def keep(self, known: int, said: Sequence[int]) -> None:
        """Of what was computed behind the first `known` tokens, keep what is as was guessed."""
        self.computed = min(self.computed, known + agreeing(self.guesses, said))

    def guessed(self, tokens: Sequence[int]) -> None:
        """These stand behind the tokens now, and all but the last are computed."""
        self.guesses = list(tokens)
        self.computed = len(self.tokens) + max(0, len(tokens) - 1)


class _Blocks:
    """The draft model's storage, and which blocks it has computed, all of each."""

    def __init__(self, storage: Blocks, num_blocks: int, block_size: int) -> None:
        self._storage = storage
        self._size = block_size
        self._whole = np.zeros(num_blocks, np.bool_)

    def clear_blocks(self, blocks: list[int]) -> None:
        """The blocks belong to other sequences now."""
        self._storage.clear_blocks(blocks)
        self._whole[blocks] = False

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy blocks with what is known of them."""
        self._storage.copy_blocks(pairs)
        for source, target in pairs:
            self._whole[target] = self._whole[source]

    def forget(self, table: Int32, position: int) -> None:
        """What stands in the block of `position` is not that of the sequence with this table."""
        self._whole[table[position // self._size]] = False

    def computed(self, table: Int32, end: int) -> int:
        """How many of the positions before `end` are there for sure, without a gap."""
        whole = self._whole[table[: end // self._size]]
        return self._size * int(len(whole) if whole.all() else whole.argmin())

    def computes(self, table: Int32, end: int) -> None:
        """The positions before `end` are computed."""
        first = whole = end // self._size
        while first and not self._whole[table[first - 1]]:
            first -= 1
        self._whole[table[first:whole]] = True


class DraftModel:
    """Keeps keys and values of its own in the same blocks as the target, so that the prefix cache holds for both.

    Nothing is computed until drafts are wanted of a sequence; then, what of its blocks it has not computed yet, for
    this sequence or another that shares them.

    Args:
        model: what computes keys and values.
        decode: decodes with it.
        tables, groups: the target's block tables, and which of them the model's layers use.
        storage: where its keys and values are, with the number of blocks; None where they are those of the target,
            which computes them anyway.
        rejects: its drafts are accepted by rejection sampling, for which `decode` says what they are drawn from.
    """

    def __init__(
        self,
        model: Model,
        decode: Decode,
        tables: BlockTables,
        groups: Sequence[int],
        storage: tuple[Blocks, int] | None = None,
        *,
        rejects: bool = False,
    ) -> None:
        self._blocks = None if storage is None else _Blocks(*storage, tables.block_size)
        self.storages: tuple[Blocks, ...] = () if self._blocks is None else (self._blocks,)
        self._rejects = rejects
        self._model = model
        self._decode = decode
        self._tables = tables
        self._groups = tuple(groups)
        self._tracks: dict[int, _Track] = {}

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """Nothing of the prompt is computed yet, or all of it was for another sample."""
        self._tracks[sequence] = _Track(tokens)

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        """Of what the target computes anew, in other blocks maybe, nothing is known any more."""
        for row, table in placed:
            track = self._tracks.get(row.sequence)
            if track is None or (track.placed and row.start >= len(track.tokens) - 1):
                continue
            track.computed, track.placed = 0, True
            if self._blocks is not None and row.start % self._tables.block_size:
                self._blocks.forget(self._table(table, row.start + 1), row.start)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Decode the tokens that are wanted, for all rows together that are not too far behind."""
        asked, late = self._within_reach(wanted)
        if late:
            self._model.run(self._gather(late)[0])
            for row, piece in late:
                self._tracks[row.sequence].computed = piece.end
                self._mark(row, piece.start)
        found: dict[int, Proposal] = {}
        if asked:
            batch, order = self._gather(asked, further=max(row.depth for row, _ in asked) - 1)
            ordered = [asked[place] for place in order]
            choices = [draft_choice(row, place, rejects=self._rejects) for place, (row, _) in enumerate(ordered)]
            depths, widths = [row.depth for row, _ in ordered], [row.width for row, _ in ordered]
            proposals = self._decode(batch, depths, widths, choices)
            for (row, piece), proposal in zip(ordered, proposals, strict=True):
                found[row.sequence] = proposal
                # Nothing is computed of other branches.
                self._tracks[row.sequence].guessed([*row.ahead, *proposal.tokens[: row.depth]])
                self._mark(row, piece.start)
        return [found.get(row.sequence, NONE) for row in wanted]

    def near(self, row: Wanted) -> bool:
        """Whether little is missing before drafts of the row can be judged."""
        return self._missing(row)[1] <= self._tables.block_size

    def judge(self, rows: Sequence[Wanted], guesses: Sequence[Sequence[int]], sampler: Sampler) -> list[Proposal]:
        """What the model says of guesses: for each row the guesses that it makes too, and one token more.

        One step computes all; the rows are near.
        """
        asked = []
        for row, guess in zip(rows, guesses, strict=True):
            start, _ = self._missing(row)
            asked.append((row, Piece(start, [*self._tokens(row, start), *guess], row.table, len(guess))))
        batch, order = self._gather(asked, further=0)
        choices = [
            draft_choice(rows[place], 0, rejects=self._rejects, ahead=ahead)
            for place in order
            for ahead in range(len(guesses[place]) + 1)
        ]
        choices = [choice._replace(row=place) for place, choice in enumerate(choices)]
        logits = self._model.run(batch)
        said = iter(sampler.guess(logits, choices))
        sources = iter(sampler.distributions(logits, choices) if self._rejects else ())
        found: dict[int, Proposal] = {}
        for place in order:
            row, piece = asked[place]
            count = piece.guesses + 1
            tokens, drawn_from = list(islice(said, count)), list(islice(sources, count))
            kept = agreeing(guesses[place], tokens) + 1
            found[row.sequence] = Proposal(tokens[:kept], drawn_from[:kept] if self._rejects else None)
            self._tracks[row.sequence].guessed([*row.ahead, *tokens[:kept]])
            self._mark(row, piece.start)
        return [found[row.sequence] for row in rows]

    def _within_reach(self, wanted: Sequence[Wanted]) -> tuple[list[tuple[Wanted, Piece]], list[tuple[Wanted, Piece]]]:
        """What has to be computed of rows that can be decoded now, and a part of what others lack."""
        left = CATCH_UP
        asked, late = [], []
        for row in wanted:
            start, _ = self._missing(row)
            tokens = self._tokens(row, start)
            if len(tokens) == 1 or len(tokens) <= left:
                asked.append((row, Piece(start, tokens, row.table)))
            elif left > 0:
                late.append((row, Piece(start, tokens[:left], row.table)))
            left -= len(tokens)
        return asked, late

    def _missing(self, row: Wanted) -> tuple[int, int]:
        """The first position that has to be computed, and how many; at least the newest token's is."""
        track = self._tracks[row.sequence]
        track.keep(len(track.tokens), row.ahead)
        newest = len(track.tokens) + len(row.ahead) - 1
        if self._blocks is None:
            return newest, 1
        known = len(track.tokens) - 1
        if not track.computed or known - track.computed > self._tables.block_size:
            track.computed = max(track.computed, self._blocks.computed(self._table(row.table, known), known))
        start = min(track.computed, newest)
        return start, newest + 1 - start

    def _tokens(self, row: Wanted, start: int) -> list[int]:
        """What stands from a position on."""
        tokens = self._tracks[row.sequence].tokens
        return [*tokens[start:], *row.ahead[max(0, start - len(tokens)) :]]

    def _mark(self, row: Wanted, start: int) -> None:
        """Keys and values of its tokens are in its blocks now, those from `start` on too.

        What was right of drafts may have filled a block before; that is known once another one is full.
        """
        track = self._tracks[row.sequence]
        # Whether the drafts behind them are right, `observe` tells.
        end = min(track.computed, len(track.tokens))
        size = self._tables.block_size
        if self._blocks is not None and start // size < end // size:
            self._blocks.computes(self._table(row.table, end), end)

    def _table(self, row: int, end: int) -> Int32:
        """A sequence's block table, as far as the position before `end`."""
        return self._tables.row_of(self._groups[0], row, -(-end // self._tables.block_size))

    def observe(self, sequence: int, gained: int) -> None:
        """Keys and values of those of its drafts that were right stay, but for the last, which it has not computed."""
        track = self._tracks[sequence]
        if track.guesses:
            known = len(track.tokens) - gained
            track.keep(known, track.tokens[known:])
            track.guesses = []

    def forget(self, sequence: int) -> None:
        """Drop what is kept of a sequence that has ended."""
        self._tracks.pop(sequence, None)

    def _gather(self, asked: Sequence[tuple[Wanted, Piece]], further: int | None = None) -> tuple[StepBatch, list[int]]:
        return gather_pieces([piece for _, piece in asked], self._tables, self._groups, further)
