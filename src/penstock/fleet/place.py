"""Where replicas run: what a supervisor asks of local processes, of Ray, and of whatever else runs them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.fleet.sharing import Slot


class Launch(msgspec.Struct, frozen=True):
    """A replica that is to be started.

    Attributes:
        name: that no other has.
        arguments: of `penstock serve`, but for where it listens and what it keeps.
        gateway: URL of the gateway that it joins.
        slot: what it may use of its machine.
        own_cores: of the slot's, those that the description reserves for it alone.
        keys: the content of its key file.
        environment: variables that it needs, beside those of the place.
        machines: that compute it together, each with such a slot.
        joining: what `penstock join` takes on the others, but for where the first one is.
    """

    name: str
    arguments: Sequence[str]
    gateway: str
    slot: Slot
    own_cores: int
    keys: str
    environment: Mapping[str, str]
    machines: int = 1
    joining: Sequence[str] = ()


class Running(Protocol):
    """A replica that was started."""

    @property
    def url(self) -> str:
        """Where the gateway reaches it; empty as long as no machine has room for it."""

    @property
    def where(self) -> str:
        """For people, such as its process."""

    async def ended(self) -> str:
        """Wait until it has ended: how it did, in words."""

    def drain(self) -> None:
        """Have it finish its requests, and end then."""

    def kill(self) -> None:
        """End it at once, whatever it does."""


class Place(Protocol):
    """Starts replicas, on this machine or others."""

    async def start(self, launch: Launch) -> Running:
        """Start one. Raises OSError, or ConfigurationError, where it cannot be."""

    async def close(self) -> None:
        """Nothing more will be started."""
