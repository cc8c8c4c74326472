"""The verbs between a replica that decodes and one that has computed its prompt, whatever carries them."""

from collections.abc import Sequence
from typing import Protocol

from penstock.cache.shelf_room import Name


class PartnerFailed(OSError):
    """A partner did not answer, or not as it should."""


class Partner(Protocol):
    """A replica that offers slots, as one sees it that pulls them. May be used on several threads.

    To offer (`runtime/offers.py`) is that replica's own. All layers' part of a block is one value. Each method raises
    PartnerFailed, and waits no longer than some seconds.
    """

    def find(self, names: Sequence[Name], awaited: int, seconds: float) -> list[bool]:
        """Which slots are there, once the last `awaited` are, or the seconds are over."""

    def pull(self, name: Name, most: int) -> bytes | bytearray | None:
        """A slot's value; None where it is not there, or longer than `most` bytes."""

    def renew(self, names: Sequence[Name], seconds: float) -> None:
        """Have the leases of slots begin anew, for this number of seconds."""

    def release(self, names: Sequence[Name]) -> None:
        """Give the leases of slots back, so that they may make room."""

    def close(self) -> None:
        """Let go of connections and of memory in common, until it is asked again."""
