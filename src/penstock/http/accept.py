"""Taking connections, as long as there are file descriptors for them."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.http import descriptors
from penstock.http.tls import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS

logger = logging.getLogger("penstock.server")

# Connections that are taken before others get their turn.
AT_A_TIME = 64
# Connections in the midst of a handshake. Each takes about 60 kB. At this limit the oldest one gives way to a new one.
MOST_BEGINNING = 1024
# Between two looks for a descriptor, while there is none.
_LOOK_SECONDS = 0.1
# Between two lines of the log that say the same.
_QUIET_SECONDS = 60.0
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Makes protocols of the connections to a socket that listens, until `close`.

    Where descriptors are short, connections wait in the kernel's queue, and what is connected goes on. The event loop's
    own servers would close what they have no descriptor for, or try again without a pause.

    Args:
        tls: what connections are encrypted with, None where they are not.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        bounds = {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "ssl_shutdown_timeout": SHUTDOWN_SECONDS}
        self._options: dict[str, Any] = {} if tls is None else {"ssl": tls, **bounds}
        self._listener = listener
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._beginning: dict[asyncio.Task[None], None] = {}
        self._told = -_QUIET_SECONDS
        self._stopped = False
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._take)

    @property
    def beginning(self) -> int:
        """Connections that were taken and have no protocol yet, as in the midst of a handshake."""
        return len(self._beginning)

    def stop(self) -> None:
        """Accept no more connections; those that were taken go on to begin, and those that are open stay open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not self._stopped:
            self._loop.remove_reader(self._listener.fileno())
        self._stopped = True

    def close(self) -> None:
        """Accept no more connections, and close those that have not begun; those that are open stay open."""
        self.stop()
        for task in self._beginning:
            task.cancel()

    def _take(self) -> None:
        """There are connections."""
        for _ in range(AT_A_TIME):
            if descriptors.is_short():
                return self._pause("all file descriptors are in use but for a reserve")
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _SHORT:
                    self._pause(error.strerror or "no resources are left")
                # Otherwise no connection waits any more, or its client has gone.
                return None
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._beginning[task] = None
            task.add_done_callback(partial(self._begun, connection))
            if len(self._beginning) > MOST_BEGINNING:
                oldest = next(iter(self._beginning))
                del self._beginning[oldest]
                oldest.cancel()
        return None

    def _begun(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.pop(task, None)
        if task.cancelled():
            connection.close()

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection, **self._options)
        except OSError as error:
            # Also what speaks no TLS, or says nothing.
            connection.close()
            logger.debug("a connection ended as it began: %s", error)

    def _pause(self, why: str) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
        if self._loop.time() - self._told >= _QUIET_SECONDS:
            self._told = self._loop.time()
            logger.warning(
                "New connections wait: %s. This process may have %d (ulimit -n); raise that, or have fewer clients.",
                why,
                descriptors.limit(),
            )

    def _look(self) -> None:
        if descriptors.is_short():
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
        else:
            self._timer = None
            self._loop.add_reader(self._listener.fileno(), self._take)
