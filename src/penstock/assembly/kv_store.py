"""The store that machines share for KV blocks: a folder, Valkey, objects of S3, or Mooncake."""

import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from penstock.assembly.disk import LAYOUT, about, needing_extra
from penstock.cache.chain import KeyFunction
from penstock.cache.shelf_room import Name
from penstock.configuration.stores import OPTION
from penstock.core.config import EngineConfig, SharedStore
from penstock.core.errors import ConfigurationError
from penstock.core.kv import KVSpec
from penstock.runtime.machine import machine_facts
from penstock.runtime.slot_files import SlotFiles
from penstock.runtime.slot_store import SlotStore
from penstock.runtime.tier import Backing

logger = logging.getLogger("penstock.kv_tiers")

# Of what the name is made under which a model's values are: it tells nothing without the secret.
OF_PART = b"part"
# A start waits so long for what a store has. Who has not answered by then is followed beside the server.
_START_SECONDS = 2.0


def open_store(config: EngineConfig, namespace: bytes, key_of: KeyFunction) -> Backing | None:
    """The store that keeps blocks of a model's pool for others, too; None where there is none.

    Only those who have the secret of `key_of`, and the same namespace, find what is there. Raises ConfigurationError
    where the store cannot be used; one that does not answer may later.
    """
    shared = config.cache.store
    if shared is None:
        return None
    part = f"{LAYOUT}-{key_of(namespace, OF_PART).hex()}"
    if shared.kind == "mooncake":
        store = _mooncake(shared, part, config.cache.spec)
    else:
        store = _store(shared, part, about(config))
    known = _names(shared, store)
    return Backing("shared", f"{OPTION} {shared.shown}", store, known, follows=True)


def _store(shared: SharedStore, part: str, about: bytes) -> SlotStore:
    if shared.kind == "folder":
        return SlotFiles(Path(shared.address) / part, shared.most_bytes, private=False, parallel=4, about=about)
    with needing_extra(OPTION, "kv-store"):
        try:
            if shared.kind == "valkey":
                from penstock.runtime.slot_values import SlotValues

                return SlotValues(shared.address, part)
            from penstock.runtime.slot_objects import SlotObjects

            return SlotObjects(shared, part, about)
        except ValueError as error:
            raise ConfigurationError(f"{OPTION} {shared.shown} cannot be used: {error}.") from None


def _mooncake(shared: SharedStore, part: str, spec: KVSpec) -> SlotStore:
    assert shared.mooncake is not None
    lent, free = shared.mooncake.segment_bytes, machine_facts(api_beside=False).available_memory
    if lent > free:
        raise ConfigurationError(
            f"{OPTION} {shared.shown} lends the store {lent} bytes of memory beside the KV pool, and {free} are free; "
            "lend it less."
        )
    with needing_extra(OPTION, "kv-mooncake"):
        from penstock.runtime.slot_mooncake import SlotMooncake

        return SlotMooncake(shared, part, max(group.width for group in spec.groups) * spec.block_bytes)


def _names(shared: SharedStore, store: SlotStore) -> tuple[Name, ...]:
    """What a store has at the start, if it says that soon. Raises ConfigurationError where it refuses this server."""
    found, errors = _within(_START_SECONDS, store.names)
    for error in errors:
        if isinstance(error, store.refusals):
            why = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
            raise ConfigurationError(f"{OPTION} {shared.shown} cannot be used: {why}.") from error
        logger.debug("the store has not said what it has: %s", error)
    return found


def _within(seconds: float, names: Callable[[], Collection[Name]]) -> tuple[tuple[Name, ...], list[Exception]]:
    """What a call returns, and what it raises, by then; it may go on."""
    found: list[Name] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            found.extend(names())
        except Exception as error:
            errors.append(error)

    asking = threading.Thread(target=ask, name="penstock-kv-store", daemon=True)
    asking.start()
    asking.join(seconds)
    return (() if asking.is_alive() else tuple(found)), errors
