"""Where keys and values are, as those that run a step see it."""

from collections.abc import Callable, Sequence
from typing import Protocol

Pairs = Sequence[tuple[int, int]]
"""Blocks that are copied, each with its target."""

Took = Callable[[], float]
"""Waits until something is over that was begun, and says how many seconds it took."""


def no_time() -> float:
    """Seconds of a copy of nothing: none, at once."""
    return 0.0


class Blocks(Protocol):
    """Keys and values in blocks."""

    def clear_blocks(self, blocks: list[int]) -> None:
        """Nothing of what was in them may be read."""

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy whole blocks, in order."""


class Slots(Protocol):
    """A pool whose slots can be copied out and in."""

    def slot(self, blocks: Sequence[int]) -> memoryview:
        """The bytes of the blocks of a slot, one behind the other, as they are until the pool changes."""

    def put_slot(self, blocks: Sequence[int], content: bytes | bytearray) -> None:
        """Put back what was copied."""


class PoolStorage(Blocks, Protocol):
    """The target's: a pool, with memory of the processor beside it."""

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks to blocks of the processor's memory."""

    def swap_in(self, pairs: Pairs) -> Took:
        """Copy blocks of the processor's memory to blocks of the pool."""

    def use_idle_time(self) -> None:
        """Make memory ready that steps will need, beside whatever comes."""
