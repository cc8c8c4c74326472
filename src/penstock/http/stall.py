"""Notices clients that stop reading: what was written for them stays in memory for as long as they are connected."""

import asyncio
import logging

logger = logging.getLogger("penstock.server")

# Seconds for which a client may take nothing of an answer, where nothing else is asked for.
STALL_SECONDS = 30.0
LOOKS = 8


class StalledClientWatch:
    """Cuts a connection off whose client has taken nothing of what was written for `seconds`.

    It watches while nothing is written. A client that takes something, however slowly, is left alone: no more than the
    transport's buffer waits for it, and what its request has merged.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread = self._looks = 0

    def begin(self, transport: asyncio.Transport) -> None:
        """What waits to be read is to become less; nothing is added before `end`."""
        if self._timer is None:
            self._transport = transport
            self._unread, self._looks = transport.get_write_buffer_size(), 0
            self._wait()

    def end(self) -> None:
        """There is nothing to watch any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds / LOOKS, self._look)

    def _look(self) -> None:
        assert self._transport is not None
        unread = self._transport.get_write_buffer_size()
        if not unread:
            self._timer = None
            return
        self._looks = self._looks + 1 if unread >= self._unread else 0
        self._unread = unread
        if self._looks < LOOKS:
            self._wait()
            return
        self._timer = None
        logger.info(
            "A connection was cut off: its client has read nothing for %g s, with %d bytes waiting.",
            self._seconds,
            unread,
        )
        self._transport.abort()
