"""What the server tells of itself: types for the API's description."""

from typing import Literal

import msgspec


class Probe(msgspec.Struct, forbid_unknown_fields=True):
    """What was tried: tokens that were generated, or none and a vector of an encoder; its seconds, and those since."""

    status: Literal["generating", "encoding"]
    tokens: int
    seconds: float
    age: float


class DeepHealth(Probe):
    """What was tried of the first model, and where there are several, of each by its name."""

    models: dict[str, Probe] | msgspec.UnsetType = msgspec.UNSET


class Status(msgspec.Struct, forbid_unknown_fields=True):
    """That the server's process is alive."""

    status: Literal["live"]


Kept = Literal["off", "working", "full", "failing"]


class Readiness(msgspec.Struct, forbid_unknown_fields=True):
    """That requests can be served, and whether what they leave can be kept.

    Attributes:
        models: where there are several, "ready" or what is the matter, by name.
    """

    status: Literal["ready"]
    storage: Kept
    models: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Version(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The release of Penstock that answers, and the devices that it simulates where nothing is computed."""

    version: str
    simulated: str | None = None
