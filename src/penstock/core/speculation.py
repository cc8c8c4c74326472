"""Who drafts tokens, as the configuration says, and how large drafts get."""

from typing import Literal

import msgspec

from penstock.core.kv import KVSpec

Proposer = Literal["ngram", "draft", "either", "chain", "self", "medusa", "eagle"]
# The most branches of one step.
MOST_BRANCHES = 32
# Tokens that are named for one place in a draft; one of them stands in the likeliest branch.
RANKS = 4


class DraftModelConfig(msgspec.Struct, frozen=True):
    """A model that drafts, or heads that do so from the target's hidden states.

    Attributes:
        path: its directory.
        quantization: what its weights are rounded to when they are loaded.
        spec: what it keeps in the target's KV blocks; None: nothing.
        most: tokens that it can draft at a time; None: any number.
    """

    path: str
    quantization: str
    spec: KVSpec | None
    most: int | None = None


class SpeculationConfig(msgspec.Struct, frozen=True):
    """Who drafts.

    Attributes:
        proposer: "ngram" the sequence's own text, "draft" another model, "either" that or the text, "chain" another
            model that has a proposer of its own, "self" the first layers of the same one, "medusa" and "eagle" heads
            on its hidden states.
        draft: the other model, or the heads.
        chain: a third model, which drafts for the other one; None in a chain: the sequence's own text does.
        layers: how many layers of the same one.
        rejects: drafts are accepted by rejection sampling, which keeps the distribution of what comes out and no more.
        remembers: tokens of finished outputs that are kept, for text to draft from.
    """

    proposer: Proposer
    draft: DraftModelConfig | None = None
    chain: DraftModelConfig | None = None
    layers: int = 0
    rejects: bool = False
    remembers: int = 0

    @property
    def by_text(self) -> bool:
        """Whether text drafts, alone or beside others."""
        return self.proposer in ("ngram", "either") or (self.proposer == "chain" and self.chain is None)


def blocks_of_branches(depth: int, block_size: int, groups: int) -> int:
    """Blocks for all branches of a step, beside the pool."""
    return MOST_BRANCHES * groups * blocks_of_branch(depth, block_size)


def blocks_of_branch(depth: int, block_size: int) -> int:
    """Blocks of one KV group that the newest token and `depth` drafts behind it may reach into."""
    return (depth + block_size - 1) // block_size + 1
