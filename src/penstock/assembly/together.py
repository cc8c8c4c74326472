"""Preparing several models that one server serves: what each may use of the machine."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock.assembly.prepare import Prepared, configure, examine, this_machine
from penstock.configuration.facts import MachineFacts
from penstock.configuration.memory_shares import Need, share_memory, told_memory
from penstock.configuration.options import EngineOptions
from penstock.configuration.pool_size import KV_SHARE_OF_FREE_MEMORY, WORKSPACE_BYTES
from penstock.core.config import BLOCK_SIZE, EngineConfig, Reason
from penstock.core.errors import ConfigurationError


@dataclass(frozen=True)
class Together:
    """Models that were prepared for one server, in their order.

    Attributes:
        shared: how they share the machine; nothing is to be told of one alone.
    """

    models: tuple[Prepared, ...]
    shared: tuple[Reason, ...] = ()


def prepare_together(
    options: Sequence[EngineOptions],
    names: Sequence[tuple[str, ...]],
    machine: MachineFacts | None = None,
    memory: int | None = None,
) -> Together:
    """Find the models, read their headers, and resolve their configurations. Raises StartupError.

    `names` are by model those under which it is to be served; its own where there are none. `machine` is this one by
    default, of whose memory they have `memory` bytes at most.
    """
    machine = machine or this_machine(api_beside=True)
    if memory is not None:
        machine = msgspec.structs.replace(machine, available_memory=min(memory, machine.available_memory))
    examined = [examine(each, machine) for each in options]
    prepared = [configure(each, machine) for each in examined]
    if len(prepared) == 1:
        return Together(tuple(prepared))
    own = [each.served_names(asked) for each, asked in zip(prepared, names, strict=True)]
    _check(prepared, own)
    # What GPUs compute lies in their memory.
    here = [number for number, each in enumerate(prepared) if each.config.device == "cpu"]
    available = machine.available_memory
    given = share_memory(available, [_need(prepared[number], own[number][0]) for number in here])
    for number, memory in zip(here, given, strict=True):
        share = msgspec.structs.replace(machine, available_memory=memory)
        prepared[number] = configure(examined[number], share)
    taken = [(own[number][0], _taken(prepared[number].config)) for number in here]
    return Together(tuple(map(_giving_way, prepared)), (told_memory(available, taken),) if taken else ())


def _check(prepared: Sequence[Prepared], names: Sequence[tuple[str, ...]]) -> None:
    """Raise ConfigurationError where models cannot be beside each other."""
    twice = [name for name, count in Counter(name for each in names for name in each).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"Two models would be served as {twice[0]!r}; give one of them another name with --served-model-name."
        )
    if any(each.config.simulated is not None for each in prepared):
        raise ConfigurationError("--with and --simulate do not go together: simulated devices serve one model.")
    devices = Counter(device for each in prepared for device in _devices(each.config))
    for device, count in devices.items():
        if count > 1:
            raise ConfigurationError(
                f"{count} models would be computed on {device}, which one engine alone can have in this release; give "
                "the others another --device, such as cpu."
            )


def _devices(config: EngineConfig) -> set[str]:
    """The GPUs that compute a model; none where processors do."""
    count = 1 if config.ranks is None else config.ranks.size
    return {config.device_of(rank) for rank in range(count)} - {"cpu"}


def _need(prepared: Prepared, name: str) -> Need:
    config = prepared.config
    spec, limits = config.cache.spec, config.scheduler
    if spec.keeps_nothing:
        # A pool has a block, which is never taken.
        return Need(name, config.weight_bytes + spec.block_bytes)
    blocks = spec.blocks_for(min(limits.max_model_len, BLOCK_SIZE), limits.longest_chunk)
    # It was configured with all memory, so that its pool is as large as it has use for, or as can be.
    pool = math.ceil((config.cache.num_blocks + 1) * _block_bytes(config) / KV_SHARE_OF_FREE_MEMORY)
    asked = prepared.options.cache.kv_cache_memory
    return Need(name, config.weight_bytes, blocks * _block_bytes(config), pool, asked)


def _taken(config: EngineConfig) -> int:
    """Bytes that an engine takes at most."""
    return config.weight_bytes + WORKSPACE_BYTES + config.cache.num_blocks * _block_bytes(config)


def _block_bytes(config: EngineConfig) -> int:
    """Of a KV block, with what models that draft keep in it."""
    drafting = config.speculation
    drafts = () if drafting is None else (drafting.draft, drafting.chain)
    beside = (each.spec.block_bytes for each in drafts if each is not None and each.spec is not None)
    ranks = config.ranks
    of_others = () if ranks is None else (ranks.specs[rank].block_bytes for rank in ranks.ranks_of(0)[1:])
    return config.cache.spec.block_bytes + sum(beside) + sum(of_others)


def _giving_way(prepared: Prepared) -> Prepared:
    """What it computes comes behind what others generate, if it generates nothing."""
    if prepared.declaration.decoder.generates:
        return prepared
    why = "text is generated first: a model that generates comes before one that encodes"
    return replace(
        prepared,
        config=msgspec.structs.replace(prepared.config, gives_way=True),
        reasons=[*prepared.reasons, Reason("gives way", "yes", why, at_start=True)],
    )
