"""How replicas share a machine's cores and memory: pure."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.configuration.pool_size import gib
from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError
from penstock.fleet.description import FleetDescription, ModelDescription

# For the gateway, and what supervises the fleet.
BESIDE_BYTES = 512 << 20


class Slot(msgspec.Struct, frozen=True):
    """What a replica may use.

    Attributes:
        cores: numbers of those that it runs on.
        memory: bytes.
    """

    cores: tuple[int, ...]
    memory: int


Slots = dict[str, tuple[Slot, ...]]


def share(fleet: FleetDescription, cores: Sequence[int], memory: int) -> Slots:
    """Slots for as many replicas as each model may have, by its name.

    What replicas ask for is taken off first, and the rest is divided equally. A replica that asks for no cores has one
    at least, which others may have too where there are more replicas than cores. Memory is shared as if an update
    already ran, which starts replicas before it ends others: those that are the largest.

    Raises ConfigurationError where they ask for more than there is.
    """
    # Slots are those of one machine each; a replica of several takes as many.
    counted = [(each, each.bounds.most * each.machines) for each in fleet.model]
    _check_cores(counted, len(cores))
    own, bytes_each = _cores_each(counted, len(cores)), _memory_each(fleet, counted, memory)
    found: Slots = {}
    at = 0
    for model in fleet.model:
        slots = []
        for _ in range(model.bounds.most):
            taken = tuple(sorted({cores[(at + number) % len(cores)] for number in range(own[model.name])}))
            at += own[model.name] * model.machines
            slots.append(Slot(taken, bytes_each[model.name]))
        found[model.name] = tuple(slots)
    return found


def _check_cores(counted: Sequence[tuple[ModelDescription, int]], cores: int) -> None:
    asked = sum((model.cores or 0) * count for model, count in counted)
    if asked > cores:
        each = ", ".join(f"{count} × {model.cores} for {model.name}" for model, count in counted if model.cores)
        raise ConfigurationError(
            f"The replicas ask for {asked} cores ({each}), and this machine has {cores}; ask for fewer cores or "
            "replicas."
        )


def _cores_each(counted: Sequence[tuple[ModelDescription, int]], cores: int) -> dict[str, int]:
    """Of a replica, by its model."""
    left = cores - sum((model.cores or 0) * count for model, count in counted)
    sharing = sum(count for model, count in counted if model.cores is None)
    part = max(1, left // sharing) if sharing else 0
    return {model.name: model.cores or part for model, _ in counted}


def _memory_each(
    fleet: FleetDescription, counted: Sequence[tuple[ModelDescription, int]], memory: int
) -> dict[str, int]:
    """Of a replica, by its model. Raises ConfigurationError."""
    asked = {model.name: parse_size(model.memory, f"memory of {model.name}") for model, _ in counted}
    known = [(size, count) for model, count in counted if (size := asked[model.name]) is not None]
    surge = fleet.surge * max((size * each.machines for each, _ in counted if (size := asked[each.name])), default=0)
    taken = sum(size * count for size, count in known)
    left = memory - BESIDE_BYTES - taken
    sharing = sum(count for model, count in counted if asked[model.name] is None)
    # One more of them during an update, or a larger one that has asked for its memory.
    more = fleet.surge * max((model.machines for model, _ in counted if asked[model.name] is None), default=1)
    part = min(left // (sharing + more), (left - surge) // sharing) if sharing else 0
    if left - (0 if sharing else surge) < 0 or (sharing and part <= 0):
        each = [f"{count} × {gib(size)} for {name}" for name, count, size in _asking(counted, asked)]
        during = f", {gib(surge)} more during an update (none with surge = 0)" if surge else ""
        raise ConfigurationError(
            f"The replicas ask for {gib(taken)} of memory ({', '.join(each) or 'parts of what is left'}){during}, and "
            f"the gateway has {gib(BESIDE_BYTES)}, but only {gib(max(memory, 0))} are available; ask for less memory, "
            "or fewer replicas."
        )
    return {name: part if size is None else size for name, size in asked.items()}


def _asking(
    counted: Sequence[tuple[ModelDescription, int]], asked: Mapping[str, int | None]
) -> Iterator[tuple[str, int, int]]:
    """Models that ask for memory: their names, replicas, and bytes of each."""
    for model, count in counted:
        if (size := asked[model.name]) is not None:
            yield model.name, count, size
