"""What a fleet tells of itself."""

import msgspec


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replica.

    Attributes:
        version: what its model was described as when it was started.
        phase: starting, ready, unready or draining, and `why` it is not ready.
        requests: under way there.
        url, where: at which it listens, and what it is on its machine.
        cores: that it runs on.
        seconds: since it was started.
    """

    name: str
    model: str
    version: str
    phase: str
    requests: int
    url: str
    where: str
    cores: tuple[int, ...]
    seconds: float
    why: str


class ModelStatus(msgspec.Struct, frozen=True):
    """A model.

    Attributes:
        version: what its replicas are to be.
        wanted: how many, and `why`; `follows`: that is the load's.
        restarts: how many ended without having been asked to.
        refused: what the budget has no room for, or an empty text.
    """

    name: str
    version: str
    wanted: int
    restarts: int
    follows: bool
    why: str
    refused: str = ""


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway: where clients reach it, its process, how often it was started again, and why it is not there."""

    url: str
    where: str
    restarts: int
    why: str


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        settled: all is as it is described.
        cores, memory: that there are for replicas; numbers of cores, and bytes.
        told: what went wrong lately, the newest last.
    """

    name: str
    settled: bool
    cores: tuple[int, ...]
    memory: int
    gateway: GatewayStatus
    models: tuple[ModelStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    told: tuple[str, ...]
