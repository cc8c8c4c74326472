"""Which replicas there are: those that the options list, those behind names of the DNS, and those that have joined."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.hosted import Hosted
from penstock.gateway.joining import AllSeen, Seen
from penstock.gateway.litellm_calls import LiteLLM, LiteLLMCalls
from penstock.gateway.options import FleetOptions, ReplicaOptions
from penstock.gateway.pool import Address, Pool, Sender, address_of
from penstock.gateway.replicas import Replica, State
from penstock.gateway.silence import end_silence
from penstock.gateway.watch import watch
from penstock.providers.options import ProviderOptions

logger = logging.getLogger("penstock.gateway")

# Between two looks at leases, and at names of the DNS.
_LEASE_LOOK_SECONDS = 0.5
_NAME_LOOK_SECONDS = 5.0


class Members:
    """The replicas of a gateway, which come and go.

    Args:
        fleet: lists some of them.
        pool_of: makes the connections to one; over sockets by default.

    Raises ConfigurationError where a key that they want is not in the environment.
    """

    def __init__(
        self, dispatch: Dispatch, fleet: FleetOptions, pool_of: Callable[[Address], Pool] | None = None
    ) -> None:
        self._dispatch, self._fleet = dispatch, fleet
        self._pool_of = pool_of or (lambda address: Pool(address, fleet.timeouts.connect))
        self._watched: dict[Replica, asyncio.Task[None]] = {}
        # When the leases of those who have joined are over.
        self._leases: dict[Replica, float] = {}
        self._names = [each for each in fleet.replica if each.dns]
        # The addresses behind each name.
        self._found: dict[str, set[str]] = {}
        self._listed = [self._add(each) for each in fleet.replica if not each.dns]
        for each in self._names:
            _key_of(each, fleet)
        self._litellm: LiteLLM | None = None
        self._hosted = [self._add_provider(each) for each in fleet.provider]

    @contextlib.asynccontextmanager
    async def looked_after(self) -> AsyncIterator[None]:
        """Look after replicas while the block runs, and then close what connects them with the gateway.

        It outlasts the server, whose requests may finish when it ends.
        """
        for replica in self._listed:
            self._watch(replica)
        for replica in self._hosted:
            # Whether it answers is learnt from its answers: nothing is asked of it that costs money.
            replica.is_ready([each.model for each in replica.hosted.options.model] if replica.hosted else ())
        listed = (each for each in self._fleet.replica if not each.dns)
        for replica, asked in zip(self._listed, listed, strict=True):
            self._dispatch.follow(replica, asked.kv)
        tasks = [
            asyncio.create_task(end_silence(self._dispatch.replicas, self._fleet.timeouts)),
            asyncio.create_task(self._end_leases()),
            *(asyncio.create_task(self._follow_name(each)) for each in self._names),
        ]
        try:
            yield
        finally:
            tasks += self._watched.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._dispatch.shadows.close()
            await self._dispatch.caches.close()
            self._dispatch.guardrails.close()
            for replica in self._dispatch.replicas.all:
                replica.sender.close()
            if self._litellm is not None:
                await self._litellm.close()

    def join(self, url: str) -> float:
        """A replica joins, or says again that it is there; the seconds until it is to say it again at the latest.

        Raises ConfigurationError for what is no URL of a replica.
        """
        address = address_of(url)
        replica = self._dispatch.replicas.of(address)
        if replica is None or replica.state == State.GONE:
            replica = self._come(ReplicaOptions(url=str(address)), "has joined")
        self._leases[replica] = _now() + self._fleet.join.lease
        return self._fleet.join.lease

    def seen(self) -> AllSeen:
        """The machines that there are."""
        requests = self._dispatch.router.loads.requests
        return AllSeen(
            tuple(
                Seen(each.name, str(each.state), each.why, requests[each.place])
                for each in self._dispatch.replicas.machines
            ),
            self._dispatch.demands.told(self._dispatch.hold.turns),
        )

    def leave(self, url: str) -> None:
        """A replica that has joined leaves, since it has finished. Raises ConfigurationError."""
        replica = self._dispatch.replicas.of(address_of(url))
        if replica is not None and self._leases.pop(replica, None) is not None and not self._is_named(replica):
            self._go(replica, "it has left")

    def _come(self, asked: ReplicaOptions, how: str) -> Replica:
        """A replica that was not there."""
        known = self._dispatch.replicas.of(address_of(asked.url))
        replica = self._add(asked) if known is None else known
        replica.is_not(State.UNKNOWN, "it has not answered yet")
        self._watch(replica)
        logger.info("%s %s", replica.name, how)
        return replica

    def _go(self, replica: Replica, why: str) -> None:
        """A replica is there no longer; what it still answers is passed on."""
        replica.is_not(State.GONE, why)
        replica.models = ()
        if (task := self._watched.pop(replica, None)) is not None:
            task.cancel()
        self._dispatch.gone(replica)
        if not replica.under_way:
            replica.pool.close()
        logger.info("%s is gone: %s", replica.name, why)

    def _add(self, asked: ReplicaOptions) -> Replica:
        pool = self._pool_of(address_of(asked.url))
        return self._dispatch.add(pool, _key_of(asked, self._fleet), asked.most_requests, asked.handicap)

    def _add_provider(self, asked: ProviderOptions) -> Replica:
        variable = asked.key_variable
        key = None if variable is None else _in_environment(variable, f"the provider {asked.name}")
        hosted = Hosted(asked, key)
        sender: Sender
        if hosted.address is not None:
            sender = self._pool_of(hosted.address)
        else:
            self._litellm, timeouts = self._litellm or LiteLLM(), self._fleet.timeouts
            read = max(timeouts.first_byte, timeouts.idle)
            sender = LiteLLMCalls(self._litellm, asked, key, timeouts.connect, read)
        return self._dispatch.add(sender, None, asked.most_requests, hosted=hosted)

    def _watch(self, replica: Replica) -> None:
        self._watched[replica] = asyncio.create_task(watch(replica, self._dispatch.told, self._fleet.timeouts.silence))

    async def _end_leases(self) -> None:
        while True:
            due = _now() + _LEASE_LOOK_SECONDS
            await asyncio.sleep(_LEASE_LOOK_SECONDS)
            late = _now() - due
            for replica, ends in list(self._leases.items()):
                if late > _LEASE_LOOK_SECONDS:
                    # The gateway itself stood still, and could not hear anyone.
                    self._leases[replica] = ends + late
                elif ends < _now():
                    del self._leases[replica]
                    if not self._is_named(replica):
                        self._go(replica, f"it has not said for {self._fleet.join.lease:g} s that it is there")

    def _is_named(self, replica: Replica) -> bool:
        """Whether it is listed, or behind a name that is."""
        return replica in self._listed or any(replica.name in urls for urls in self._found.values())

    async def _follow_name(self, asked: ReplicaOptions) -> None:
        """Have a replica for each address behind a name."""
        address, failed = address_of(asked.url), False
        while True:
            try:
                urls = await _resolved(address)
                failed = False
            except (OSError, UnicodeError) as error:
                if not failed:
                    logger.warning("%s cannot be resolved (%s); its replicas stay as they are", address.host, error)
                failed, urls = True, self._found.get(asked.url, set())
            before = self._found.get(asked.url, set())
            self._found[asked.url] = urls
            for url in sorted(urls):
                known = self._dispatch.replicas.of(address_of(url))
                if known is None or known.state == State.GONE:
                    self._come(msgspec.structs.replace(asked, url=url), f"is behind {address.host}")
            for url in before - urls:
                replica = self._dispatch.replicas.of(address_of(url))
                if replica is not None and replica not in self._leases and not self._is_named(replica):
                    self._go(replica, f"it is behind {address.host} no longer")
            await asyncio.sleep(_NAME_LOOK_SECONDS)


async def _resolved(address: Address) -> set[str]:
    """URLs with the addresses behind a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return {str(Address(str(place[0]), address.port, address.encrypted, address.root)) for *_, place in found}


def _key_of(asked: ReplicaOptions, fleet: FleetOptions) -> str | None:
    """The API key that a replica wants. Raises ConfigurationError where it is not in the environment."""
    variable = asked.key_variable or fleet.key_variable
    return None if variable is None else _in_environment(variable, asked.url)


def _in_environment(variable: str, whose: str) -> str:
    """An API key. Raises ConfigurationError."""
    key = os.environ.get(variable)
    if not key:
        raise ConfigurationError(
            f"The variable {variable} is not in the environment; set it to the API key of {whose}."
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError(f"The variable {variable} has characters that no API key of {whose} can have.")
    return key


def _now() -> float:
    return asyncio.get_running_loop().time()
