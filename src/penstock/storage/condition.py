"""Whether the disk or the database under a server's data works: known from what was tried, and tried until it does."""

import asyncio
import contextlib
import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from sqlalchemy.exc import DBAPIError

from penstock.database.errors import DatabaseUnavailable
from penstock.storage.errors import DatabaseAway, StorageFailed, StorageFull, StorageRefused, StorageUnavailable

logger = logging.getLogger("penstock.server")

# Between two looks at a disk that failed; it doubles from the first to the longest.
FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
# The errors of SQLite that the disk is the reason for.
_DISK_CODES = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}
)
_AWAY = "The server's database does not answer; its log has the cause; try again later."
_UNKNOWN = "The server's storage failed; its log has the cause."
_DISK_FULL = (
    "The server's disk is full, and nothing more is kept until there is room; delete files that are not needed with "
    "DELETE /v1/files/{id}."
)


class StorageCondition:
    """Of one data directory, or of one database. Failures may be told by any thread.

    Attributes:
        failure: why nothing can be kept now; None while it can, as far as is known.
        failures: how many operations have failed, by why.
    """

    def __init__(self, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS) -> None:
        self.failure: StorageUnavailable | None = None
        self.failures = {"full": 0, "failed": 0}
        self._first = first_seconds
        self._longest = longest_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed = asyncio.Event()
        # Held while `failure` is set or taken back.
        self._lock = threading.Lock()

    def explain(self, error: OSError | sqlite3.Error) -> StorageUnavailable:
        """The error to raise for what the operating system, or SQLite, has said."""
        return self._note(error, _explained(error))

    def explain_database(self, error: DBAPIError | DatabaseUnavailable) -> StorageUnavailable:
        """The error to raise for what a database has said."""
        cause = error.__cause__ if isinstance(error, DatabaseUnavailable) else error
        origin = cause.orig if isinstance(cause, DBAPIError) else None
        if isinstance(origin, sqlite3.Error):
            return self.explain(origin)
        if type(origin).__name__ == "DiskFull":
            return self._note(error, StorageFull(_DISK_FULL))
        if isinstance(error, DatabaseUnavailable):
            return self._note(error, DatabaseAway(_AWAY))
        return self._note(error, StorageRefused(_UNKNOWN))

    def _note(self, error: Exception, made: StorageUnavailable) -> StorageUnavailable:
        if isinstance(made, StorageRefused):
            logger.error("the database failed", exc_info=error)
            return made
        with self._lock:
            self.failures["full" if isinstance(made, StorageFull) else "failed"] += 1
            worked, self.failure = self.failure is None, made
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._failed.set)
        if worked:
            logger.error("What is to be kept is refused, or waits, until it works again: %s (%s)", made.message, error)
        return made

    def check(self) -> None:
        """Raise why nothing can be kept now, if nothing can."""
        if self.failure is not None:
            raise type(self.failure)(self.failure.message)

    def check_reached(self) -> None:
        """Raise DatabaseAway while a database does not answer that is looked for."""
        if self._loop is not None and isinstance(self.failure, DatabaseAway):
            raise DatabaseAway(self.failure.message)

    @contextlib.asynccontextmanager
    async def watched(self, probe: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """While the block runs, find out with `probe` when a disk that has failed works again."""
        self._loop = asyncio.get_running_loop()
        if self.failure is not None:
            self._failed.set()
        task = asyncio.ensure_future(self._watch(probe))
        try:
            yield
        finally:
            self._loop = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def recovery(self, seconds: float) -> None:
        """Wait for `seconds`; where the disk has failed, only until it works."""
        failed = self.failure is not None
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not (failed and self.failure is None):
            await asyncio.sleep(min(left, self._first))

    def delays(self) -> "Delays":
        """The delays of a caller that tries again and again."""
        return Delays(self._first, self._longest)

    async def _watch(self, probe: Callable[[], Awaitable[None]]) -> None:
        delays, worked = self.delays(), time.monotonic()
        while True:
            await self._failed.wait()
            failed = time.monotonic()
            # A disk that worked for a moment only is not asked more often for that.
            if failed - worked > self._longest:
                delays = self.delays()
            while self.failure is not None:
                await asyncio.sleep(delays.next())
                known = self.failure
                with contextlib.suppress(StorageUnavailable):
                    await probe()
                    self._recover(known)
            self._failed.clear()
            worked = time.monotonic()
            logger.warning("What is kept can be written again, after %.0f s.", worked - failed)

    def _recover(self, known: StorageUnavailable | None) -> None:
        """A probe has succeeded. What has failed since `known` says more: it failed beside the probe, or after it."""
        with self._lock:
            if self.failure is known:
                self.failure = None


class Delays:
    """Seconds to wait before each further attempt: twice as long as before, up to a bound."""

    def __init__(self, first: float, longest: float) -> None:
        self._next = first
        self._longest = longest

    def next(self) -> float:
        """Seconds to wait before the next attempt; they double each time."""
        now = self._next
        self._next = min(2 * now, self._longest)
        return now


def _explained(error: OSError | sqlite3.Error) -> StorageUnavailable:
    """The error for a client; StorageRefused where the disk is not the reason."""
    if isinstance(error, OSError):
        if error.errno in _FULL:
            return StorageFull(_DISK_FULL)
        if error.errno in _NO_DESCRIPTORS:
            return StorageFailed("The server has no file descriptors left; try again later.")
        cause = os.strerror(error.errno) if error.errno else "no cause is known"
        return StorageFailed(f"The server's storage failed ({cause}); its log has more; try again later.")
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(_DISK_FULL)
    if code is not None and code & 0xFF in _DISK_CODES:
        return StorageFailed(f"The server's storage failed ({error}); its log has more; try again later.")
    return StorageRefused(_UNKNOWN)
