"""What the server tells of itself: types for the API's description."""

from typing import Literal

import msgspec


class Probe(msgspec.Struct, forbid_unknown_fields=True):
    """What was tried: tokens that were generated, or none and a vector of an encoder; its seconds, and those since."""

    status: Literal["generating", "encoding"]
    tokens: int
    seconds: float
    age: float


class Status(msgspec.Struct, forbid_unknown_fields=True):
    """That the server's process is alive."""

    status: Literal["live"]


class Readiness(msgspec.Struct, forbid_unknown_fields=True):
    """That requests can be served, and whether what they leave can be kept."""

    status: Literal["ready"]
    storage: Literal["off", "working", "full", "failing"]


class Version(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The release of Penstock that answers, and the devices that it simulates where nothing is computed."""

    version: str
    simulated: str | None = None
