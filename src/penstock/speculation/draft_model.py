"""Drafts from a model that is smaller, or from the first layers of the same one.

Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023; Chen et al., "Accelerating
large language model decoding with speculative sampling", 2023. It chooses tokens with the request's own random numbers,
as the target will (`verifier.py`), so that the two agree often at any temperature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from penstock.core.plan import RowPlan
from penstock.runtime.executor import Model
from penstock.runtime.gather import gather_batch, order_rows
from penstock.runtime.storage import KVStorage
from penstock.runtime.tables import BlockTables
from penstock.sampling.sampler import Sampler
from penstock.speculation.proposer import Wanted


@dataclass(slots=True)
class _Track:
    """A sequence as the draft model has it: what is known of it, and of how many positions it has keys and values."""

    tokens: list[int]
    computed: int = 0
    guesses: list[int] = field(default_factory=list)


class DraftModel:
    """Keeps keys and values of its own in the same blocks as the target, so that the prefix cache holds for both.

    It computes each prompt when the target does, and outputs when drafts are wanted. Where others computed a block
    without it, what stands there is nothing; its drafts are worse for that, and nothing else is.

    Args:
        model: makes logits.
        tables, groups: the target's block tables, and which of them the model's layers use.
        sampler: over the draft model's vocabulary, for one step at a time.
        storage: where its keys and values are; None where they are those of the target, which computes them anyway.
    """

    def __init__(
        self,
        model: Model,
        tables: BlockTables,
        groups: Sequence[int],
        sampler: Sampler,
        storage: KVStorage | None = None,
    ) -> None:
        self.storage = storage
        self._model = model
        self._tables = tables
        self._groups = tuple(groups)
        self._sampler = sampler
        self._tracks: dict[int, _Track] = {}

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """Nothing of the prompt is computed yet, or all of it was for another sample."""
        self._tracks[sequence] = _Track(list(prompt))

    def follow(self, rows: Sequence[RowPlan], table_rows: Sequence[int]) -> None:
        """Compute what the target computes of prompts, and what it lost; outputs wait until drafts are wanted."""
        chunks = []
        for row, table in zip(rows, table_rows, strict=True):
            track = self._tracks.get(row.sequence)
            if track is None:
                continue
            # Where it has nothing itself, what stands in the blocks is another sequence's, or the target's.
            known = track.computed if track.computed and self.storage is not None else row.start
            decodes = row.draft_depth > 0 or (row.start >= len(track.tokens) - 1 and track.computed > 0)
            if self.storage is None or decodes or len(row.tokens) < row.count:
                # It lags behind by what was decoded without drafts.
                track.computed = min(known, row.start)
            else:
                chunks.append((row.sequence, row.start, row.tokens, table))
                track.computed = row.start + row.count
        if chunks:
            self._compute(chunks, wanted=False)

    def propose(self, wanted: Sequence[Wanted]) -> list[list[int]]:
        """Decode as many tokens as are wanted, for all rows together."""
        for row in wanted:
            self._tracks[row.sequence].guesses = []
        for depth in range(max(row.depth for row in wanted)):
            rows = [row for row in wanted if row.depth > depth]
            asked = []
            for row in rows:
                track = self._tracks[row.sequence]
                tokens = [*track.tokens[track.computed :], *track.guesses]
                start = track.computed
                if depth:
                    start, tokens = len(track.tokens) + depth - 1, tokens[-1:]
                asked.append((row.sequence, start, tokens, row.table))
            logits, order = self._compute(asked, wanted=True)
            ordered = [rows[place] for place in order]
            choices = [row.state.choice_ahead(place, depth) for place, row in enumerate(ordered)]
            for row, token in zip(ordered, self._sampler.guess(logits, choices), strict=True):
                self._tracks[row.sequence].guesses.append(token)
        drafts = []
        for row in wanted:
            track = self._tracks[row.sequence]
            # The newest token is computed now; whether the drafts behind it are right, `observe` tells.
            track.computed = len(track.tokens)
            drafts.append(track.guesses)
        return drafts

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

    def _compute(
        self, asked: Sequence[tuple[int, int, Sequence[int], int]], *, wanted: bool
    ) -> tuple[Tensor, list[int]]:
        """Logits of the last position of each (sequence, start, tokens, row of the tables), and whose they are."""
        plans = [
            RowPlan(sequence, start, len(tokens), list(tokens), None, (sequence,) if wanted else (), ())
            for sequence, start, tokens, _ in asked
        ]
        place_of = {sequence: place for place, (sequence, *_) in enumerate(asked)}
        rows = order_rows(plans)
        order = [place_of[row.sequence] for row in rows]
        tokens = [token for row in rows for token in row.tokens]
        table_rows = [asked[place][3] for place in order]
        return self._model.run(gather_batch(rows, tokens, table_rows, self._tables, self._groups)), order


def _agreeing(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses are right, up to the first that is not."""
    for count, (guess, token) in enumerate(zip(guesses, tokens, strict=False)):
        if guess != token:
            return count
    return min(len(guesses), len(tokens))
