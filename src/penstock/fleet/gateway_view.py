"""How the gateway sees the replicas: the one judge of whether they can be asked, wherever they run."""

import asyncio
from typing import NamedTuple

import msgspec

from penstock.gateway.demand import Demand
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.joining import PATH, AllSeen, Seen
from penstock.gateway.pool import Pool, address_of

_ANSWER_SECONDS = 5.0
_MOST_BYTES = 1 << 22


class View(NamedTuple):
    """Replicas by their URLs, and by their models what they have to do."""

    replicas: dict[str, Seen]
    demands: dict[str, Demand]


class GatewayView:
    """Asks a gateway for its replicas, with the token that they join with."""

    def __init__(self, url: str, token: str) -> None:
        self._address = address_of(url)
        self._pool, self._token = Pool(self._address), token

    async def look(self) -> View | None:
        """What it sees; None where it does not answer now."""
        head = (
            f"GET {self._address.root}{PATH} HTTP/1.1\r\nhost: {self._address.authority}\r\n"
            f"authorization: Bearer {self._token}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), self._pool.apart(head.encode()) as (_, exchange):
                status, body = (await exchange.head()).status, await exchange.body(_MOST_BYTES)
            if status != 200:
                return None
            seen = msgspec.json.decode(body, type=AllSeen)
            return View({each.url: each for each in seen.replicas}, {each.model: each for each in seen.demands})
        except (ReplicaBroken, OSError, UnicodeError, TimeoutError, msgspec.DecodeError):
            return None

    def close(self) -> None:
        """It is asked no more."""
        self._pool.close()
