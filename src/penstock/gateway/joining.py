"""What a replica does to be one of a gateway's: it joins, says again and again that it is there, and leaves in the end.

Who has the gateway's token may join.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Sequence

import msgspec

from penstock.gateway.demand import Demand
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.pool import Address, Pool, address_of

logger = logging.getLogger("penstock.joining")

PATH = "/v1/fleet/replicas"
# Of the environment, with the token.
VARIABLE = "PENSTOCK_JOIN_TOKEN"
# A replica says several times in a lease that it is there, so that one message may be lost.
_TIMES_A_LEASE = 3
# Between two tries at a gateway that cannot be reached, or refuses.
_RETRY_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_MAX_BODY = 16 * 1024


class Joining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica that joins or leaves.

    Attributes:
        url: where the gateway reaches it.
    """

    url: str


class Joined(msgspec.Struct, frozen=True):
    """The gateway's answer.

    Attributes:
        lease: seconds after which the replica is gone, unless it joins again before.
    """

    lease: float


class Seen(msgspec.Struct, frozen=True):
    """A replica as a gateway sees it.

    Attributes:
        url: where the gateway reaches it.
        state: see `gateway.replicas.State`; `why` it cannot be asked, or an empty text.
        requests: under way there.
    """

    url: str
    state: str
    why: str
    requests: int


class AllSeen(msgspec.Struct, frozen=True):
    """All machines of a gateway, and what they have to do."""

    replicas: tuple[Seen, ...]
    demands: tuple[Demand, ...] = ()


@contextlib.asynccontextmanager
async def joined(gateways: Sequence[str], own: Address, token: str) -> AsyncIterator[None]:
    """Be a replica of gateways while the block runs, and leave them then.

    `own` is where they reach it; where that is every address of the machine, the one that leads to a gateway is said.
    """
    joins = [_Join(address_of(each), own, token) for each in gateways]
    tasks = [asyncio.create_task(each.stay()) for each in joins]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.leave() for each in joins))


class _Join:
    """Of one gateway."""

    def __init__(self, gateway: Address, own: Address, token: str) -> None:
        self._gateway, self._own, self._token = gateway, own, token
        self._pool = Pool(gateway)
        self._said: str | None = None

    async def stay(self) -> None:
        """Join, and say again and again that it is there, until this is cancelled."""
        while True:
            try:
                answer = msgspec.json.decode(await self._ask("POST"), type=Joined)
                self._say("")
                await asyncio.sleep(answer.lease / _TIMES_A_LEASE)
            except (ReplicaBroken, OSError, UnicodeError, TimeoutError, msgspec.DecodeError) as error:
                why = error.message if isinstance(error, ReplicaBroken) else str(error) or "it does not answer"
                self._say(why)
                await asyncio.sleep(_RETRY_SECONDS)

    async def leave(self) -> None:
        """Say that it has gone; a gateway that does not hear it will see it."""
        with contextlib.suppress(ReplicaBroken, OSError, UnicodeError, TimeoutError):
            await self._ask("DELETE")
        self._pool.close()

    def _say(self, why: str) -> None:
        """Log what has changed."""
        if why == self._said:
            return
        self._said = why
        if why:
            logger.warning("This server cannot join %s: %s", self._gateway, why)
        else:
            logger.info("This server is a replica of %s", self._gateway)

    async def _ask(self, method: str) -> bytes:
        own = self._own
        if own.host in ("0.0.0.0", "::"):
            own = own._replace(host=await asyncio.to_thread(_local_address, self._gateway))
        body = msgspec.json.encode(Joining(str(own)))
        head = (
            f"{method} {self._gateway.root}{PATH} HTTP/1.1\r\nhost: {self._gateway.authority}\r\n"
            f"authorization: Bearer {self._token}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        async with asyncio.timeout(_ANSWER_SECONDS):
            async with self._pool.apart(head.encode() + body) as (_, exchange):
                status, answer = (await exchange.head()).status, await exchange.body(_MAX_BODY)
        if status != 200:
            raise ReplicaBroken(_message(answer) or f"it answered with status {status}")
        return answer


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def _message(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Refusal).error.message
    except msgspec.DecodeError:
        return ""


def _local_address(gateway: Address) -> str:
    """The address of this machine that leads to a gateway; nothing is sent. Raises OSError."""
    family, kind, _, _, place = socket.getaddrinfo(gateway.host, gateway.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
