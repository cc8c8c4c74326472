"""Where keys and values are, as those that run a step see it."""

from typing import Protocol

from penstock.core.plan import BlockCopy


class Blocks(Protocol):
    """Keys and values in blocks."""

    def clear_blocks(self, blocks: list[int]) -> None:
        """Nothing of what was in them may be read."""

    def copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        """Copy whole blocks, in order."""
