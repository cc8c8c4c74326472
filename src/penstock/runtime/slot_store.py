"""The protocol of what keeps slots beyond the pool: a folder, Valkey, objects of S3, Mooncake."""

from collections.abc import Collection, Sequence
from typing import Protocol

from penstock.cache.shelf_room import Name


class SlotStore(Protocol):
    """Values by the names of slots, each there as a whole or not at all. May be used on several threads.

    Each method raises one of `failures` where the store does not work, and one of `refusals`, which are among these,
    where it will not before somebody does something about it. No method waits longer than some seconds for an answer;
    only with a folder, for which the operating system has no such bound, it may.

    Attributes:
        parallel: how many calls at a time it takes to be fast.
    """

    parallel: int
    failures: tuple[type[Exception], ...]
    refusals: tuple[type[Exception], ...]

    def names(self) -> Collection[Name]:
        """Of all that are there now, those that others wrote among them."""

    def get(self, name: Name, most: int) -> bytes | bytearray | None:
        """A value; None where it is not there, or longer than `most` bytes."""

    def put(self, name: Name, value: bytes | bytearray, weight: float = 0.0) -> Sequence[Name]:
        """Write one; returns the names of those that had to go for it.

        What makes room by itself does so by the `weight` of the tenant, 0 where that is as it was; what a server bounds
        cannot.
        """


class SlotKeeper(Protocol):
    """What keeps slots on request until a time: all others make room before."""

    def kept(self) -> dict[Name, float]:
        """Those that are kept, with the seconds that are left."""

    def expect(self, name: Name, seconds: float) -> None:
        """One will be kept for so long: from now on it makes no room, if it is there."""

    def keep(self, name: Name, seconds: float) -> bool:
        """Keep one for so long at least; False where it is not there."""
