"""Drafts from heads that look further ahead than the model's own, each from the newest hidden state.

Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", ICML 2024. Where
a tree is wanted, the candidates are those of the largest products of the heads' own probabilities.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from penstock.core.plan import RowPlan
from penstock.core.speculation import RANKS
from penstock.kernels.batch import StepBatch
from penstock.sampling.sampler import Sampler
from penstock.speculation.candidates import Ranked, likely_tree
from penstock.speculation.proposer import NONE, Proposal, Wanted, draft_choice
from penstock.stepping.storage import Blocks


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

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """Nothing is known of it."""

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        """Does nothing: the heads have no cache to fill."""

    def see(self, sequence: int, start: int, states: Tensor) -> None:
        """The newest of them says what comes next."""
        self._seen[sequence] = states

    def observe(self, sequence: int, gained: int) -> None:
        """The state that the last of the `gained` tokens came from is kept for the next drafts."""
        seen = self._seen.pop(sequence, None)
        if seen is not None:
            self._newest[sequence] = seen[gained - 1].clone()

    def forget(self, sequence: int) -> None:
        """Drop what is kept of a sequence that has ended."""
        self._seen.pop(sequence, None)
        self._newest.pop(sequence, None)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """A token of each of the first heads, to the depth that is wanted, or a tree of them."""
        known = [row for row in wanted if row.sequence in self._newest]
        if not known:
            return [NONE for _ in wanted]
        states = torch.stack([self._newest[row.sequence] for row in known])
        heads = self._heads.results(_rows(len(known)), states)
        places = list(enumerate(known))
        proposals = self._trees(heads, [(place, row) for place, row in places if row.width])
        proposals |= self._chains(heads, [(place, row) for place, row in places if not row.width])
        return [proposals.get(row.sequence, NONE) for row in wanted]

    def _trees(self, heads: Sequence[Tensor], known: Sequence[tuple[int, Wanted]]) -> dict[int, Proposal]:
        """The likeliest tokens of each head, and the likeliest of all others as branches."""
        ranked: dict[int, list[Ranked]] = {row.sequence: [] for _, row in known}
        for ahead, logits in enumerate(heads):
            # No token can stand behind a head that says nothing, since its logits are not finite.
            asked = [(place, row) for place, row in known if row.depth > ahead == len(ranked[row.sequence])]
            if not asked:
                break
            choices = [draft_choice(row, place, rejects=False, ahead=ahead) for place, row in asked]
            for (_, row), named in zip(asked, self._sampler.ranked(logits, choices, RANKS), strict=True):
                ranked[row.sequence] += [named] if named else []
        return {row.sequence: likely_tree(ranked[row.sequence], row.width, continued=True) for _, row in known}

    def _chains(self, heads: Sequence[Tensor], known: Sequence[tuple[int, Wanted]]) -> dict[int, Proposal]:
        proposals = {row.sequence: Proposal([], [] if self._rejects else None) for _, row in known}
        for ahead, logits in enumerate(heads):
            asked = [(place, row) for place, row in known if row.depth > ahead]
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


def _rows(count: int) -> StepBatch:
    """A step of `count` rows without tokens or a context."""
    ones, zeros = [1] * count, torch.zeros(count, dtype=torch.int64)
    return StepBatch(
        token_ids=zeros,
        positions=zeros,
        query_lengths=ones,
        context_lengths=ones,
        num_decodes=count,
        logit_rows=torch.arange(count),
        block_tables=(),
        block_size=16,
    )
