"""Drafts from heads that look further ahead than the model's own, each from the newest hidden state.

Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", ICML 2024. Where
a tree is wanted, the candidates are those of the largest products of the heads' own probabilities.
"""

import heapq
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, Protocol

import torch
from torch import Tensor

from penstock.core.plan import RowPlan
from penstock.kernels.batch import StepBatch
from penstock.sampling.sampler import Sampler
from penstock.speculation.proposer import NONE, Blocks, Proposal, Wanted, draft_choice
from penstock.speculation.tree import chain

# Tokens of one head that may be in a tree.
RANKS = 4


class Heads(Protocol):
    """What makes logits of hidden states."""

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """Logits of each head, [rows, vocabulary]."""


class MedusaProposer:
    """Keeps each sequence's newest hidden state; all heads guess in one call.

    Args:
        heads: a program of `models.heads.MedusaHeads`.
        sampler: over its vocabulary.
        rejects: its drafts are accepted by rejection sampling.
    """

    states: Literal["selected", "all"] = "selected"

    def __init__(self, heads: Heads, sampler: Sampler, *, rejects: bool = False) -> None:
        self.storages: tuple[Blocks, ...] = ()
        self._heads = heads
        self._sampler = sampler
        self._rejects = rejects
        # What was seen last, and of it the state behind which the newest token came.
        self._seen: dict[int, Tensor] = {}
        self._newest: dict[int, Tensor] = {}

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """Nothing is known of it."""

    def follow(self, rows: Sequence[RowPlan], table_rows: Sequence[int]) -> None:
        """Nothing is computed."""

    def see(self, sequence: int, start: int, states: Tensor) -> None:
        """The newest of them says what comes next."""
        self._seen[sequence] = states

    def observe(self, sequence: int, tokens: Sequence[int]) -> None:
        """The last of the tokens came from the state at as many positions as there are before it."""
        seen = self._seen.pop(sequence, None)
        if seen is not None:
            self._newest[sequence] = seen[len(tokens) - 1].clone()

    def forget(self, sequence: int) -> None:
        """Forget the sequence."""
        self._seen.pop(sequence, None)
        self._newest.pop(sequence, None)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """A token of each head, as many as are wanted."""
        known = [row for row in wanted if row.sequence in self._newest]
        if not known:
            return [NONE for _ in wanted]
        states = torch.stack([self._newest[row.sequence] for row in known])
        heads = self._heads.results(_rows(len(known)), states)
        trees = {row.sequence: self._tree(heads, place, row) for place, row in enumerate(known) if row.width}
        chains = self._chains(heads, known) if len(trees) < len(known) else {}
        return [{**chains, **trees}.get(row.sequence, NONE) for row in wanted]

    def _tree(self, heads: Sequence[Tensor], place: int, row: Wanted) -> Proposal:
        """The likeliest tokens of each head, and the likeliest of all others as branches."""
        ranked = []
        for ahead, logits in enumerate(heads[: row.depth]):
            choice = draft_choice(row, place, rejects=False, ahead=ahead)
            ranked += self._sampler.ranked(logits, [choice], RANKS)
        # A head whose logits are not finite says nothing, and so nobody can stand behind it.
        ranked = ranked[: next((ahead for ahead, tokens in enumerate(ranked) if not tokens), len(ranked))]
        return likely_tree(ranked, row.width)

    def _chains(self, heads: Sequence[Tensor], known: Sequence[Wanted]) -> dict[int, Proposal]:
        proposals = {row.sequence: Proposal([], [] if self._rejects else None) for row in known}
        for ahead, logits in enumerate(heads):
            asked = [(place, row) for place, row in enumerate(known) if row.depth > ahead]
            if not asked:
                break
            self._add(logits, asked, ahead, proposals)
        return proposals

    def _add(
        self, logits: Tensor, asked: Sequence[tuple[int, Wanted]], ahead: int, proposals: dict[int, Proposal]
    ) -> None:
        """Add each row's draft of the head that looks so far `ahead`."""
        choices = [draft_choice(row, place, rejects=self._rejects, ahead=ahead) for place, row in asked]
        for (_, row), token in zip(asked, self._sampler.guess(logits, choices), strict=True):
            proposals[row.sequence].tokens.append(token)
        if self._rejects:
            for (_, row), source in zip(asked, self._sampler.distributions(logits, choices), strict=True):
                sources = proposals[row.sequence].drawn_from
                assert sources is not None
                sources.append(source)


def likely_tree(ranked: Sequence[Sequence[tuple[int, float]]], width: int) -> Proposal:
    """The first token of each head, and `width` others.

    Of each head there are tokens and their probabilities, in the order in which they are to be tried. A token of the
    first head may be the first, and behind any token of a head may stand one of the next. Those are taken whose
    probability, times that of all before them, is the largest.
    """
    tokens = [head[0][0] for head in ranked]
    parents = chain(len(tokens))
    likely = list(accumulate((head[0][1] for head in ranked), operator.mul))
    open_: list[tuple[float, int, int, int, float]] = []

    def offer(parent: int, depth: int, rank: int, before: float) -> None:
        if depth < len(ranked) and rank < len(ranked[depth]):
            heapq.heappush(open_, (-before * ranked[depth][rank][1], parent, depth, rank, before))

    for depth in range(len(tokens)):
        offer(depth - 1, depth, 1, likely[depth - 1] if depth else 1.0)
    while open_ and len(tokens) < len(ranked) + width:
        negative, parent, depth, rank, before = heapq.heappop(open_)
        place = len(tokens)
        tokens.append(ranked[depth][rank][0])
        parents.append(parent)
        offer(parent, depth, rank + 1, before)
        offer(place, depth + 1, 0, -negative)
    return Proposal(tokens, None, parents)


def _rows(count: int) -> StepBatch:
    """A step of so many rows without tokens or a context."""
    ones, zeros = [1] * count, torch.zeros(count, dtype=torch.int64)
    return StepBatch(zeros, zeros, ones, ones, count, torch.arange(count), (), 16)
