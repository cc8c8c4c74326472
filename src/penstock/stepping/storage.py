"""Where keys and values are, as those that run a step see it."""

from collections.abc import Sequence
from typing import Protocol

from penstock.core.plan import BlockCopy, BlockSwap


class Blocks(Protocol):
    """Keys and values in blocks."""

    def clear_blocks(self, blocks: list[int]) -> None:
        """Nothing of what was in them may be read."""

    def copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        """Copy whole blocks, in order."""


class PoolStorage(Blocks, Protocol):
    """The target's: a pool, with memory beside it to which blocks can be swapped."""

    def swap(self, out: Sequence[BlockSwap], back: Sequence[BlockSwap]) -> None:
        """Copy blocks to the other memory, then others, or the same, from there."""

    def use_idle_time(self) -> None:
        """Make memory ready that steps will need, beside whatever comes."""
