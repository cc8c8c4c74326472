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


class Copied(Protocol):
    """A slot on its way out of a pool, for who uses its bytes then; its blocks may be used again."""

    def is_there(self) -> bool:
        """Whether its bytes have come out; asked by the thread that computes steps, and so is `wait`."""

    def wait(self) -> None:
        """Wait until its bytes have come out."""

    def use(self) -> None:
        """Have them used, once for all who call this; on any thread, once they are there."""

    def drop(self) -> None:
        """It is not wanted; called instead of `use`."""


class Used:
    """A slot of this process's memory, which was used at once: see `Copied`."""

    def is_there(self) -> bool:
        """It was copied at once."""
        return True

    def wait(self) -> None:
        """There is nothing to wait for."""

    def use(self) -> None:
        """It was used when it was asked for."""

    def drop(self) -> None:
        """There is nothing to give back."""


class Slots(Protocol):
    """A pool whose slots can be copied out and in, by the thread that computes steps."""

    def copied(self, blocks: Sequence[int], used: Callable[[memoryview], None]) -> Copied | None:
        """A copy of the blocks of a slot, one behind the other, for `used`, which is given it; None: there is no room.

        They are as all steps so far leave them, and may be used again after `begin_copies`.
        """

    def begin_copies(self) -> None:
        """Begin the copies that were asked for since."""

    def put_slots(self, slots: Sequence[tuple[Sequence[int], bytes | bytearray]]) -> None:
        """Put contents into the blocks of slots: what is computed from now on finds them there."""


class PoolStorage(Blocks, Protocol):
    """The target's: a pool, with memory of the processor beside it."""

    def swap_out(self, pairs: Pairs) -> None:
        """Copy blocks to blocks of the processor's memory."""

    def swap_in(self, pairs: Pairs) -> Took:
        """Copy blocks of the processor's memory to blocks of the pool."""

    def use_idle_time(self) -> None:
        """Make memory ready that steps will need, beside whatever comes."""
