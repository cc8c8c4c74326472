"""The tiers beyond the KV pool: a disk, and a store that machines share."""

from penstock.assembly.disk import open_disk
from penstock.assembly.kv_store import open_store
from penstock.cache.chain import KeyFunction
from penstock.cache.manager import KVCache
from penstock.cache.shelf import Shelf
from penstock.core.config import EngineConfig
from penstock.core.kv import KVSpec
from penstock.runtime.storage import KVStorage
from penstock.runtime.tiers import Tiers

# Slots that may be on their way to a tier, by their bytes.
_MOST_WRITING = 256 << 20


def open_tiers(config: EngineConfig, namespace: bytes, key_of: KeyFunction, pool: object) -> Tiers | None:
    """What keeps blocks of a model's pool, the fastest first; None where nothing does. Raises ConfigurationError."""
    opened = open_disk(config, namespace, key_of), open_store(config, namespace, key_of)
    backings = [each for each in opened if each is not None]
    if not backings:
        return None
    assert isinstance(pool, KVStorage), "a GPU's blocks are not kept"
    return Tiers(backings, pool, _slot_bytes(config.cache.spec))


def put_on_shelves(cache: KVCache, tiers: Tiers | None) -> None:
    """Have what the cache publishes written to the tiers, if there are some, and what it has lost read from there."""
    if tiers is None:
        return
    most = max(1, _MOST_WRITING // max(_slot_bytes(cache.spec)))
    cache.put_on([Shelf(each.shelf, cache.transfers, each.known, most) for each in tiers.backings])


def _slot_bytes(spec: KVSpec) -> list[int]:
    """Bytes of a slot of each group."""
    return [group.width * spec.block_bytes for group in spec.groups]
