"""Puts a scheduler and its cache together: for the engine, and for what plays traffic without one."""

from penstock.cache.chain import KeyFunction
from penstock.cache.manager import KVCache
from penstock.cache.pool import BlockPool
from penstock.cache.shelf import Shelf
from penstock.cache.shelf_places import HostPlaces
from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.scheduler.scheduler import Scheduler


def build_scheduler(
    config: SchedulerConfig,
    cache: CacheConfig,
    *,
    namespace: bytes = b"",
    key_of: KeyFunction | None = None,
    pool: type[BlockPool] = BlockPool,
) -> Scheduler:
    """The scheduler of a resolved configuration, over the books of its KV pool.

    `namespace` has what keys of prefixes depend on beside the tokens, and `key_of` makes them; without it, they have no
    secret. Raises ValueError where a step cannot have a token of each row.
    """
    books = KVCache(
        cache.spec,
        cache.num_blocks,
        namespace=namespace,
        key_of=key_of,
        prefix_caching=cache.prefix_caching,
        kept_share=cache.kept_share,
        events=cache.events,
        pool=pool,
    )
    if cache.host_blocks:
        # Numbered behind those of preempted sequences.
        places = HostPlaces(cache.swap_blocks, cache.host_blocks)
        books.put_on([Shelf("memory", books.transfers, (), cache.host_blocks, places=places)])
    return Scheduler(config, books, cache.swap_blocks)
