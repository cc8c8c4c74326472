"""Slots as values of Valkey or Redis: each is written at once, and goes when it has not been read for a day.

How much there may be is the server's to bound, by `maxmemory` and `maxmemory-policy`.
"""

import logging

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from penstock.cache.shelf_room import Name
from penstock.runtime.slot_names import slot_called, text_of

logger = logging.getLogger("penstock.kv_tiers")

# Seconds for a connection, and for each piece of an answer.
_CONNECT_SECONDS, _ANSWER_SECONDS = 2.0, 5.0
_KEPT_SECONDS = 24 * 3600
# Keys that the server looks at for one answer of a list.
_LOOKED_AT = 1000


class SlotValues:
    """Values of a server, whose names begin with a part of theirs.

    Args:
        url: as the client takes it; raises ValueError where it does not.
        part: of one model's slots.
    """

    parallel = 4
    failures: tuple[type[Exception], ...] = (RedisError, OSError)
    refusals: tuple[type[Exception], ...] = (AuthenticationError, NoPermissionError)

    def __init__(self, url: str, part: str) -> None:
        self._prefix = f"penstock:kv:{part}:"
        self._client = redis.Redis.from_url(
            url,
            retry=None,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            # Of the other protocol, a store that wants a password says it in a way that looks like a broken connection.
            protocol=2,
        )
        self._bound_is_known = False
        try:
            # Without a connection: what it cannot take in a URL is told now.
            self._client.connection_pool.make_connection()
        except TypeError as error:
            raise ValueError(str(error)) from None

    def names(self) -> list[Name]:
        """Of all of this part: the server goes through all keys of its database."""
        if not self._bound_is_known:
            self._look_at_bound()
        prefix = self._prefix.encode()
        found = self._client.scan_iter(match=prefix + b"*", count=_LOOKED_AT)
        names = (slot_called(key[len(prefix) :].decode("ascii", "replace")) for key in found)
        return [name for name in names if name is not None]

    def _look_at_bound(self) -> None:
        try:
            bound = int(self._client.config_get("maxmemory").get("maxmemory") or 1)
        except ResponseError as error:
            # Hosted ones may not say how they are set.
            logger.info("the store does not say what bound it has: %s", error)
        else:
            if not bound:
                logger.warning(
                    "The store of --kv-store has no bound: set its maxmemory, and maxmemory-policy allkeys-lru."
                )
        self._bound_is_known = True

    def get(self, name: Name, most: int) -> bytes | None:
        """A value, which is kept for a day from now on."""
        key = self._key(name)
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.getrange(key, 0, most)
            pipeline.expire(key, _KEPT_SECONDS)
            value: bytes = pipeline.execute()[0]
        return value if 0 < len(value) <= most else None

    def put(self, name: Name, value: bytes | bytearray, weight: float = 0.0) -> tuple[Name, ...]:
        """Write one; what goes for it, the server does not say."""
        self._client.set(self._key(name), value, ex=_KEPT_SECONDS)
        return ()

    def _key(self, name: Name) -> str:
        return self._prefix + text_of(name)
