"""How many connections a server has at a time, and which gives way to which."""

import asyncio
import time
from collections.abc import Callable, Collection
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

    def __init__(
        self, limit: int, watched_paths: Collection[bytes] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`watched_paths` are answered although there is no room for requests. `clock` tells seconds."""
        self.limit = limit
        self._watched = frozenset(watched_paths)
        self._clock = clock
        # Since when they are; the one that has been so for longest comes first.
        self._idle: dict[Idle, float] = {}
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
        self._idle[connection] = self._clock()
        return True

    def begin(self, connection: Idle) -> None:
        """A request has come on this connection: it is idle no more."""
        if self._idle.pop(connection, None) is not None:
            self._busy.add(connection)

    def end(self, connection: Idle) -> None:
        """All its requests are answered."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle[connection] = self._clock()

    def close_idle(self, seconds: float) -> None:
        """Close connections that have had no request for so long, behind what is still sent on them."""
        before = self._clock() - seconds
        for each in [each for each, since in self._idle.items() if since <= before]:
            each.transport.close()

    def remove(self, connection: Idle) -> None:
        """Forget a connection that was closed."""
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def allow(self, path: bytes | None) -> bool:
        """Whether the request that has begun may be answered, besides the others under way."""
        return path in self._watched or len(self._busy) <= max(1, self.limit - SPARE_CONNECTIONS)
