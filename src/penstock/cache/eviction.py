"""Eviction policies: a key for each cached block; the block with the smallest key goes first."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class BlockUse:
    """What a policy may know of a cached block.

    Attributes:
        last_used: logical time at which the last sequence let go of it.
        depth: index of the block in its prefix chain.
    """

    last_used: int = 0
    depth: int = 0


EvictionKey = Callable[[BlockUse], tuple[int, ...]]


def least_recently_used(use: BlockUse) -> tuple[int, ...]:
    """Oldest first; of one sequence's blocks the deepest first, since a chain is only useful from its start."""
    return (use.last_used, -use.depth)
