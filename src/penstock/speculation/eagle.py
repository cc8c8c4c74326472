"""Drafts from a small decoder that guesses the model's next hidden state.

Li et al., "EAGLE: Speculative sampling requires rethinking feature uncertainty", ICML 2024. At position i it reads the
token at i + 1 and the hidden state at i, the model's where that is known and else its own; what it makes of them is the
state at i + 1, and by the model's head the token at i + 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from penstock.core.plan import RowPlan
from penstock.kernels.batch import StepBatch
from penstock.speculation.decoding import Decode, StepwiseModel
from penstock.speculation.pieces import Piece, gather_pieces
from penstock.speculation.proposer import NONE, Proposal, Wanted, draft_choice
from penstock.stepping.storage import Blocks
from penstock.stepping.tables import BlockTables

# A sequence without drafts is computed once it is this many tokens behind: together they cost little.
LAG = 64


@dataclass(slots=True)
class _Track:
    """A sequence: its tokens, how many are its prompt, its row of the block tables, and states from `first` on."""

    tokens: list[int]
    prompt: int
    table: int = -1
    first: int = 0
    states: Tensor | None = None

    @property
    def ready(self) -> int:
        """How many positions can be computed: those that have a state, and a token behind them."""
        return 0 if self.states is None else min(len(self.states), len(self.tokens) - 1 - self.first)

    def taken(self, count: int) -> tuple[list[int], Tensor]:
        """Tokens and states of the first positions; they are not kept."""
        assert self.states is not None
        begin = self.first + 1
        tokens, states = self.tokens[begin : begin + count], self.states[:count]
        self.first += count
        self.states = self.states[count:] if count < len(self.states) else None
        return tokens, states


class EagleProposer:
    """Keeps keys and values of its own layers in the target's blocks, at the positions of the states.

    Where another sequence's block is shared, its last position was computed with that sequence's next token: drafts may
    be a little worse for that.

    Args:
        head: a program of `models.heads.EagleHead`.
        decode: decodes with it.
        tables, groups: the target's block tables, and which of them its layers use.
        rejects: its drafts are accepted by rejection sampling, for which `decode` says what they are drawn from.
    """

    states: Literal["selected", "all"] = "all"

    def __init__(
        self,
        head: StepwiseModel,
        decode: Decode,
        tables: BlockTables,
        groups: Sequence[int],
        storage: Blocks,
        *,
        rejects: bool = False,
    ) -> None:
        self.storages: tuple[Blocks, ...] = (storage,)
        self._head = head
        self._decode = decode
        self._tables = tables
        self._groups = tuple(groups)
        self._rejects = rejects
        self._tracks: dict[int, _Track] = {}

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """Nothing of the prompt is computed yet, or all of it was for another sample."""
        self._tracks[sequence] = _Track(tokens, len(tokens))

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        """What they are computed from is seen later; here it learns where they are."""
        for row, table in placed:
            if (track := self._tracks.get(row.sequence)) is not None:
                track.table = table

    def see(self, sequence: int, start: int, states: Tensor) -> None:
        """Compute what is known of a prompt at once."""
        track = self._tracks.get(sequence)
        if track is None:
            return
        kept = None if track.states is None else track.first + len(track.states)
        if kept == start and track.states is not None:
            track.states = torch.cat((track.states, states))
        else:
            # Others computed what is before, or it is computed anew.
            track.first, track.states = start, states.clone()
        # Other samples of the prompt, and sequences that share its blocks, find it computed.
        whole = start + len(states) == len(track.tokens) == track.prompt
        if track.ready >= LAG or (whole and track.ready):
            batch, _, given = self._taken([track])
            self._head.results(batch, given)

    def observe(self, sequence: int, gained: int) -> None:
        """Nothing is kept of a state behind which nothing is known to come, since the output ends there."""
        track = self._tracks[sequence]
        if track.states is not None:
            track.states = track.states[: max(0, len(track.tokens) - 1 - track.first)]

    def forget(self, sequence: int) -> None:
        """Drop what is kept of a sequence that has ended."""
        self._tracks.pop(sequence, None)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Decode the tokens that are wanted, for all rows together."""
        known = [row for row in wanted if self._tracks[row.sequence].ready]
        if not known:
            return [NONE for _ in wanted]
        # The last position decides what comes next; those before it have waited for it.
        tracks = [self._tracks[row.sequence] for row in known]
        for track, row in zip(tracks, known, strict=True):
            track.table = row.table
        batch, order, states = self._taken(tracks, further=max(row.depth for row in known) - 1)
        ordered = [known[place] for place in order]
        choices = [draft_choice(row, place, rejects=self._rejects) for place, row in enumerate(ordered)]
        depths, widths = [row.depth for row in ordered], [row.width for row in ordered]
        found = self._decode(batch, depths, widths, choices, states)
        proposals = {row.sequence: proposal for row, proposal in zip(ordered, found, strict=True)}
        return [proposals.get(row.sequence, NONE) for row in wanted]

    def _taken(self, tracks: Sequence[_Track], further: int | None = None) -> tuple[StepBatch, list[int], Tensor]:
        """The batch of all that can be computed of some sequences, their order in it, and its states."""
        pieces, given = [], []
        for track in tracks:
            first = track.first
            tokens, states = track.taken(track.ready)
            pieces.append(Piece(first, tokens, track.table))
            given.append(states)
        batch, order = gather_pieces(pieces, self._tables, self._groups, further)
        return batch, order, torch.cat([given[place] for place in order])
