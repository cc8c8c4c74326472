"""How many connections a server has at a time, and which gives way to which."""

import asyncio
from collections.abc import Collection
from typing import Protocol

# Connections at a time, where nothing else is asked for. Each takes some memory, and a file descriptor.
MAX_CONNECTIONS = 4096
# Connections that are left for clients that watch the server, and for answers that say that there is no room.
SPARE_CONNECTIONS = 16


class Idle(Protocol):
    """A connection on which no request is being answered."""

    transport: asyncio.Transport


class Connections:
    """Those of one server. Each is either idle (nothing came, or not yet a whole head) or busy with requests.

    At the limit the connection that has been idle for longest gives way to a new one. So a client that keeps
    connections open, or sends heads byte by byte, does not keep other clients out. A new one is refused only where
    all are busy.
    """

    def __init__(self, limit: int, watched_paths: Collection[bytes] = ()) -> None:
        """`watched_paths` are answered although there is no room for requests."""
        self.limit = limit
        self._watched = frozenset(watched_paths)
        self._idle: dict[Idle, None] = {}
        self._busy: set[Idle] = set()

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def add(self, connection: Idle) -> bool:
        """Take a new connection in; False where there is no room."""
        if len(self) >= self.limit:
            # A connection whose client still reads an answer is spared.
            longest = next((each for each in self._idle if not each.transport.get_write_buffer_size()), None)
            if longest is None:
                return False
            self.remove(longest)
            longest.transport.abort()
        self._idle[connection] = None
        return True

    def begin(self, connection: Idle) -> None:
        """A request has come on this connection: it is idle no more."""
        if self._idle.pop(connection, connection) is None:
            self._busy.add(connection)

    def end(self, connection: Idle) -> None:
        """All its requests are answered."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle[connection] = None

    def close_idle(self) -> None:
        """Close connections without a request, behind what is still sent on them."""
        for each in list(self._idle):
            each.transport.close()

    def remove(self, connection: Idle) -> None:
        """Forget a connection that was closed."""
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def allow(self, path: bytes | None) -> bool:
        """Whether the request that has begun may be answered, besides the others under way."""
        return path in self._watched or len(self._busy) <= max(1, self.limit - SPARE_CONNECTIONS)
