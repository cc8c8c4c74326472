"""The tiers beyond the KV pool: a disk, and a store that machines share."""

from penstock.assembly.backend import Storage
from penstock.assembly.disk import needing_extra, open_disk
from penstock.assembly.kv_store import open_store
from penstock.cache.chain import KeyFunction
from penstock.cache.keeps import Keeps
from penstock.cache.manager import KVCache
from penstock.cache.shelf import MOST_WRITING, Shelf
from penstock.configuration.stores import OPTION
from penstock.core.config import EngineConfig
from penstock.core.kv import KVSpec
from penstock.runtime.tiers import Tiers

# Of what the key is made with which slots are encrypted.
OF_VALUES = b"files"
# The share of the disk that may be kept on request.
KEPT_OF_DISK = 0.5


def open_tiers(config: EngineConfig, namespace: bytes, key_of: KeyFunction, pool: Storage) -> Tiers | None:
    """What keeps blocks of a model's pool, the fastest first; None where nothing does.

    Blocks are encrypted with a key that `key_of` makes: its secret, and the namespace of the model, must be the same
    for those who read them. Raises ConfigurationError; InsufficientMemory where a GPU's blocks cannot be on their way.
    """
    cache = config.cache
    if cache.disk is None and cache.store is None:
        return None
    with needing_extra(*(("--kv-disk", "kv-disk") if cache.store is None else (OPTION, "kv-store"))):
        # What encrypts.
        from penstock.runtime.sealing import Sealing
    opened = open_disk(config, namespace), open_store(config, namespace, key_of)
    backings = [each for each in opened if each is not None]
    return Tiers(backings, Sealing(key_of(namespace, OF_VALUES)), pool.slots(), _slot_bytes(cache.spec))


def put_on_shelves(cache: KVCache, tiers: Tiers | None, disk_bytes: int) -> None:
    """Have what the cache publishes written to the tiers, if there are some, and what it has lost read from there.

    `disk_bytes` is what may be on the disk, which keeps prefixes on request.
    """
    if tiers is None:
        return
    most = max(1, MOST_WRITING // max(_slot_bytes(cache.spec)))
    shelves = []
    for each in tiers.backings:
        keeps = None
        if each.keeper is not None:
            keeps = Keeps(int(KEPT_OF_DISK * disk_bytes), cache.spec.slot_bytes, each.keeper.kept())
        shelves.append(Shelf(each.shelf, cache.transfers, each.known, most, keeps))
    cache.put_on(shelves)


def _slot_bytes(spec: KVSpec) -> list[int]:
    """Bytes of a slot of each group."""
    return [group.width * spec.block_bytes for group in spec.groups]
