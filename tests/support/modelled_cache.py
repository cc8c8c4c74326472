"""What a naive model knows of the KV cache: its sequences, and the plans that have not committed."""

import hashlib
from dataclasses import dataclass, field

from penstock.cache.held import SequenceBlocks
from penstock.cache.swap import SwappedBlocks
from penstock.cache.transfers import Batch
from support.made_up_model import History


def short_hash(parent: bytes, tokens: bytes) -> bytes:
    """Two bits: everything collides with something."""
    return bytes([hashlib.blake2b(parent + tokens, digest_size=1).digest()[0] & 3])


@dataclass(eq=False)
class Modelled:
    """A sequence as the model knows it."""

    blocks: SequenceBlocks
    salt: str
    history: History
    computed: int = 0
    last_plan: int | None = None
    epoch: int = 0
    alive: bool = True
    swapped: SwappedBlocks | None = None
    drafting: bool = False
    loading: Batch | None = None
    dropped: set[tuple[int, int]] = field(default_factory=set)
    tables: list[list[tuple[int, ...]]] = field(default_factory=list)

    def dropped_of(self, group: int) -> set[int]:
        """The slots of a group that were given up, by the indices that they had at first."""
        return {index for each, index in self.dropped if each == group}


@dataclass
class Outstanding:
    """A plan that has not committed: what to publish then, the blocks it touches, and its copies within the pool.

    Of one with drafts, the last `wrong` are.
    """

    number: int
    sequence: Modelled
    epoch: int
    end: int
    touched: set[int]
    copies: list[int]
    fails: bool = False
    wrong: int | None = None


def slots_of(sequence: Modelled) -> list[list[int]]:
    """What it has at each index, by group."""
    return [table.slots for table in sequence.blocks.tables]


def hosts_of(swapped: SwappedBlocks) -> list[int]:
    """Host blocks of a copy."""
    return [host for group in swapped.hosts for _, places in group for host in places]
