"""Drafts from a model that is smaller, or from the first layers of the same one.

Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023; Chen et al., "Accelerating
large language model decoding with speculative sampling", 2023. It chooses tokens with the request's own random numbers,
as the target will (`verifier.py`), so that the two agree often at any temperature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.core.plan import BlockCopy, RowPlan
from penstock.kernels.batch import StepBatch
from penstock.runtime.executor import Model
from penstock.runtime.gather import gather_batch, order_rows
from penstock.runtime.storage import KVStorage
from penstock.runtime.tables import BlockTables, Int32
from penstock.speculation.decoding import Decode
from penstock.speculation.proposer import NONE, Proposal, Wanted, draft_choice

# Positions that are made up for in one step: a long prompt must not hold up everybody's next token.
CATCH_UP = 512


@dataclass(slots=True)
class _Track:
    """A sequence as the draft model has it: what is known of it, and of how many positions it has keys and values.

    None are taken to be there until drafts are wanted; then the blocks say. It is `placed` once the target has computed
    something of it.
    """

    tokens: list[int]
    computed: int = 0
    placed: bool = False
    guesses: list[int] = field(default_factory=list)


_Piece = tuple[Wanted, int, list[int]]
"""A row, the first position that is computed of it, and the tokens from there on."""


class _Blocks:
    """The draft model's storage, and how many positions of each block it has computed."""

    def __init__(self, storage: KVStorage, num_blocks: int) -> None:
        self._storage = storage
        self._size = storage.block_size
        self._computed = np.zeros(num_blocks, np.int64)

    def clear_blocks(self, blocks: list[int]) -> None:
        """The blocks are somebody else's now."""
        self._storage.clear_blocks(blocks)
        self._computed[blocks] = 0

    def copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        """Copy blocks with what is known of them."""
        self._storage.copy_blocks(copies)
        for copy in copies:
            self._computed[copy.target] = self._computed[copy.source]

    def forget_from(self, table: Int32, position: int) -> None:
        """What stands in the block of `position`, from there on, is not that of the sequence with this table."""
        block = table[position // self._size]
        self._computed[block] = min(self._computed[block], position % self._size)

    def computed(self, table: Int32, end: int) -> int:
        """How many of the positions before `end` are there, without a gap."""
        counts = self._computed[table[: -(-end // self._size)]]
        short = (counts < self._size).nonzero()[0]
        if not short.size:
            return end
        first = int(short[0])
        return min(end, first * self._size + int(counts[first]))

    def computes(self, table: Int32, start: int, end: int) -> None:
        """The positions from `start` to `end` are computed, and all before them are."""
        first, whole = start // self._size, end // self._size
        while first and self._computed[table[first - 1]] < self._size:
            first -= 1
        self._computed[table[first:whole]] = self._size
        if rest := end % self._size:
            self._computed[table[whole]] = max(self._computed[table[whole]], rest)


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
        storage: tuple[KVStorage, int] | None = None,
        *,
        rejects: bool = False,
    ) -> None:
        self.storage = self._blocks = None if storage is None else _Blocks(*storage)
        self._rejects = rejects
        self._model = model
        self._decode = decode
        self._tables = tables
        self._groups = tuple(groups)
        self._tracks: dict[int, _Track] = {}

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """Nothing of the prompt is computed yet, or all of it was for another sample."""
        self._tracks[sequence] = _Track(list(prompt))

    def follow(self, rows: Sequence[RowPlan], table_rows: Sequence[int]) -> None:
        """Of what the target computes anew, in other blocks maybe, nothing is known any more."""
        for row, table in zip(rows, table_rows, strict=True):
            track = self._tracks.get(row.sequence)
            if track is None or (track.placed and row.start >= len(track.tokens) - 1):
                continue
            track.computed, track.placed = 0, True
            if self._blocks is not None and row.start % self._tables.block_size:
                self._blocks.forget_from(self._table(table, row.start + 1), row.start)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Decode as many tokens as are wanted, for all rows together that are not too far behind."""
        asked, late = self._within_reach(wanted)
        if late:
            self._model.run(self._gather(late, further=None)[0])
        found: dict[int, Proposal] = {}
        if asked:
            batch, order = self._gather(asked, further=max(row.depth for row, *_ in asked) - 1)
            ordered = [asked[place][0] for place in order]
            choices = [draft_choice(row, place, rejects=self._rejects) for place, row in enumerate(ordered)]
            proposals = self._decode(batch, [row.depth for row in ordered], choices)
            found = {row.sequence: proposal for row, proposal in zip(ordered, proposals, strict=True)}
        for row, start, tokens in (*asked, *late):
            self._take(row, start, start + len(tokens), found.get(row.sequence, NONE))
        return [found.get(row.sequence, NONE) for row in wanted]

    def _within_reach(self, wanted: Sequence[Wanted]) -> tuple[list[_Piece], list[_Piece]]:
        """What has to be computed of rows that can be decoded now, and a part of what others lack."""
        left = CATCH_UP
        asked: list[_Piece] = []
        late: list[_Piece] = []
        for row in wanted:
            start = self._start(row)
            tokens = self._tracks[row.sequence].tokens[start:]
            if len(tokens) == 1 or len(tokens) <= left:
                asked.append((row, start, tokens))
            elif left > 0:
                late.append((row, start, tokens[:left]))
            left -= len(tokens)
        return asked, late

    def _start(self, row: Wanted) -> int:
        """The first position that has to be computed; at least the newest token's is."""
        track = self._tracks[row.sequence]
        newest = len(track.tokens) - 1
        if self._blocks is None:
            return newest
        if not track.computed or newest - track.computed > self._tables.block_size:
            found = self._blocks.computed(self._table(row.table, newest), newest)
            track.computed = max(track.computed, found)
        return min(track.computed, newest)

    def _take(self, row: Wanted, start: int, end: int, proposal: Proposal) -> None:
        track = self._tracks[row.sequence]
        track.guesses = proposal.tokens
        # Up to the newest token all is computed now; whether the drafts behind it are right, `observe` tells.
        track.computed = end
        if self._blocks is not None:
            self._blocks.computes(self._table(row.table, end), start, end)

    def _table(self, row: int, end: int) -> Int32:
        """A sequence's block table, as far as the position before `end`."""
        blocks = -(-end // self._tables.block_size)
        found: Int32 = self._tables.rows_of(self._groups[0], np.array([row]), blocks)[0]
        return found

    def observe(self, sequence: int, tokens: Sequence[int]) -> None:
        """Keys and values of those of its drafts that were right stay, but for the last, which it has not computed."""
        track = self._tracks[sequence]
        if track.computed == len(track.tokens):
            track.computed += _agreeing(track.guesses[:-1], tokens)
        track.guesses = []
        track.tokens.extend(tokens)

    def forget(self, sequence: int) -> None:
        """Forget the sequence."""
        self._tracks.pop(sequence, None)

    def _gather(self, asked: Sequence[_Piece], further: int | None) -> tuple[StepBatch, list[int]]:
        """The batch of all pieces, and in which order they are in it.

        Logits are wanted, of the last position of each, where they are to be decoded `further`.
        """
        plans = [
            RowPlan(place, start, len(tokens), tokens, None, () if further is None else (place,), ())
            for place, (_, start, tokens) in enumerate(asked)
        ]
        rows = order_rows(plans)
        tokens = [token for row in rows for token in row.tokens]
        table_rows = [asked[row.sequence][0].table for row in rows]
        batch = gather_batch(rows, tokens, table_rows, self._tables, self._groups, further or 0)
        return batch, [row.sequence for row in rows]


def _agreeing(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses are right, up to the first that is not."""
    for count, (guess, token) in enumerate(zip(guesses, tokens, strict=False)):
        if guess != token:
            return count
    return min(len(guesses), len(tokens))
