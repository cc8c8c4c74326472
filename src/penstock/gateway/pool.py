"""Connections to one replica, kept open between requests."""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from penstock.core.errors import ConfigurationError
from penstock.gateway.connection import Connection
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.exchange import Exchange

# Connections that are kept though nothing is sent on them.
MOST_IDLE = 256
_IDLE_SECONDS = 4.0
# A timer that comes later than this comes late since the gateway stood still.
_LATE_SECONDS = 0.25


class Sending(Protocol):
    """What sends a request.

    Attributes:
        requests: that it has sent, this one too; after others, its connection may be closed by now.
    """

    requests: int

    def close(self) -> None:
        """Leave what is under way."""


class Sender(Protocol):
    """Sends requests to one replica or provider."""

    async def send(self, *parts: bytes, fresh: bool = False) -> tuple[Sending, Exchange]:
        """Send a request, on a `fresh` connection if that is asked for. Raises ReplicaBroken where none can be made."""

    def close(self) -> None:
        """End all that is under way."""


class Address(NamedTuple):
    """Where a replica listens.

    Attributes:
        root: what all its paths begin with.
    """

    host: str
    port: int
    encrypted: bool
    root: str

    @property
    def authority(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.encrypted else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"http{'s' if self.encrypted else ''}://{self.authority}{self.root}"


def address_of(url: str) -> Address:
    """The address in a URL. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"{url!r} is no URL of a replica; write one like http://10.0.0.5:8000.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigurationError(f"{url!r} is no URL of a replica; write one like http://10.0.0.5:8000.")
    encrypted = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if encrypted else 80), encrypted, parts.path.rstrip("/"))


class Pool:
    """Sends requests to one address, each on a connection of its own while it lasts.

    Args:
        connect_seconds: that it may take until a connection is there.
    """

    def __init__(self, address: Address, connect_seconds: float = 2.0, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._connect_seconds = connect_seconds
        self._tls = (tls or ssl.create_default_context()) if address.encrypted else None
        # With when each became idle. The one that was used last is taken first, so that others grow old.
        self._idle: deque[tuple[Connection, float]] = deque()
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._open)

    async def send(self, *parts: bytes, fresh: bool = False) -> tuple[Connection, Exchange]:
        """Send a request, on a `fresh` connection if that is asked for. Raises ReplicaBroken where none can be made."""
        now = asyncio.get_running_loop().time()
        while self._idle and not fresh:
            connection, since = self._idle.pop()
            # Many servers close what has been idle for five seconds, perhaps as a request is on its way.
            if connection.is_open and now - since < _IDLE_SECONDS:
                return connection, connection.send(parts)
            connection.close()
        connection = await self._connect()
        if not connection.is_open:
            raise ReplicaBroken("it closed a connection at once")
        return connection, connection.send(parts)

    @contextlib.asynccontextmanager
    async def apart(self, *parts: bytes) -> AsyncIterator[tuple[Connection, Exchange]]:
        """A request on a connection of its own, which is closed where the block ends before its answer does.

        Raises ReplicaBroken where none can be made.
        """
        connection, exchange = await self.send(*parts, fresh=True)
        try:
            yield connection, exchange
        finally:
            if not exchange.whole:
                connection.close()

    def close(self) -> None:
        """Close all connections, and end what they do."""
        for connection in list(self._open):
            connection.close()

    async def _connect(self) -> Connection:
        loop, address = asyncio.get_running_loop(), self.address
        while True:
            due = loop.time() + self._connect_seconds
            try:
                async with asyncio.timeout_at(due):
                    _, connection = await loop.create_connection(
                        lambda: Connection(self._free, self._lost), address.host, address.port, ssl=self._tls
                    )
            except TimeoutError:
                if loop.time() < due + _LATE_SECONDS:
                    raise ReplicaBroken(f"it does not take a connection within {self._connect_seconds:g} s") from None
                # The gateway itself stood still: that says nothing of the replica.
            except (OSError, UnicodeError) as error:
                # A name that is none in the DNS.
                why = error.strerror if isinstance(error, OSError) else None
                raise ReplicaBroken(f"it cannot be reached ({why or error})") from None
            else:
                self._open.add(connection)
                return connection

    def _free(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        while self._idle and (len(self._idle) == MOST_IDLE or now - self._idle[0][1] >= _IDLE_SECONDS):
            self._idle.popleft()[0].close()
        self._idle.append((connection, now))

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        for entry in [entry for entry in self._idle if entry[0] is connection]:
            self._idle.remove(entry)
