"""The tiers beyond the KV pool: a disk, and a store that machines share."""

from collections.abc import Callable, Sequence

from penstock.assembly.disk import needing_extra, open_disk
from penstock.assembly.handover import Handover, open_handover
from penstock.assembly.kv_store import open_store
from penstock.cache.chain import KeyFunction
from penstock.cache.keeps import Keeps
from penstock.cache.manager import KVCache
from penstock.cache.shelf import MOST_WRITING, Shelf
from penstock.configuration.stores import OPTION
from penstock.core.config import EngineConfig
from penstock.core.kv import KVSpec
from penstock.core.plan import Shelved
from penstock.runtime.tiers import Tiers
from penstock.stepping.storage import Slots

# Of what the key is made with which slots are encrypted.
OF_VALUES = b"files"


def open_tiers(
    config: EngineConfig, namespace: bytes, key_of: KeyFunction, slots: Callable[[], Slots]
) -> tuple[Tiers | None, Handover]:
    """What keeps `slots` of a model's pool, the fastest first, None where nothing does; and the replica's part.

    Blocks are encrypted with a key that `key_of` makes: its secret, and the namespace of the model, must be the same
    for those who read them. Raises ConfigurationError; InsufficientMemory where a GPU's blocks cannot be on their way.
    """
    cache = config.cache
    if cache.disk is None and cache.store is None and cache.handover is None:
        return None, Handover()
    with needing_extra(*_needs(config)):
        # What encrypts.
        from penstock.runtime.sealing import Sealing
    handover = open_handover(config, namespace, key_of)
    opened = handover.backing, open_disk(config, namespace), open_store(config, namespace, key_of)
    backings = [each for each in opened if each is not None]
    sealing = Sealing(key_of(namespace, OF_VALUES))
    return Tiers(backings, sealing, slots(), _slot_bytes(config.slots)), handover


def _needs(config: EngineConfig) -> tuple[str, str]:
    """The option that needs what encrypts, and the extra with that."""
    cache = config.cache
    if cache.handover is not None:
        return f"--role {cache.handover.role}", "kv-disk"
    return ("--kv-disk", "kv-disk") if cache.store is None else (OPTION, "kv-store")


def put_on_shelves(cache: KVCache, tiers: Tiers | None, spec: KVSpec) -> Callable[[], Sequence[Shelved]]:
    """Have what the cache publishes written to the tiers, if there are some, and what it has lost read from there.

    `spec` is of slots outside of the pool. Returns what tells news of them.
    """
    if tiers is None:
        return tuple
    most = max(1, MOST_WRITING // max(_slot_bytes(spec)))
    shelves = []
    for each in tiers.backings:
        keeps = None
        if each.keeper is not None:
            keeps = Keeps(each.keeps, spec.slot_bytes, each.keeper.kept())
        shelves.append(Shelf(each.shelf, cache.transfers, each.known, 0 if each.is_read_only else most, keeps))
    cache.put_on(shelves, spec.slot_bytes)
    return tiers.news


def _slot_bytes(spec: KVSpec) -> list[int]:
    """Bytes of a slot of each group."""
    return [group.width * spec.block_bytes for group in spec.groups]
