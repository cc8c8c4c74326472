"""One SQLite database and the one thread that uses it, so that the event loop never waits for the disk."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from penstock.core.errors import ConfigurationError
from penstock.storage.condition import StorageCondition

Answer = TypeVar("Answer")
Work = Callable[[sqlite3.Connection], Answer]
# The statements that lead from each version of a database to the next; the first ones make it.
Migrations = Sequence[Sequence[str]]

_PRAGMAS = (
    # One server has the folder. So the log's index is in memory, and reading works on a full disk.
    "PRAGMA locking_mode = EXCLUSIVE",
    # Neither room elsewhere nor a file descriptor is needed for what is temporary.
    "PRAGMA temp_store = MEMORY",
    "PRAGMA journal_mode = WAL",
    # Every commit is on the disk before it is reported.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    # The log gives its space back after a large transaction.
    "PRAGMA journal_size_limit = 67108864",
)


class Database:
    """Runs functions as transactions, one after another, on a thread of its own.

    A store makes one with `open` (a file in the server's data directory, and its own migrations) and ends it with
    `close`.
    """

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, condition: StorageCondition) -> None:
        self._connection = connection
        self._thread = thread
        self._condition = condition

    @classmethod
    def open(cls, path: Path, migrations: Migrations, condition: StorageCondition | None = None) -> "Database":
        """Open the database, make it where there is none, and bring it to the newest version.

        `condition` is told of what the disk fails. Raises ConfigurationError where a newer Penstock wrote it, or where
        it cannot be read.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix=path.stem)
        try:
            connection = thread.submit(_connect, path, migrations).result()
            return cls(connection, thread, condition or StorageCondition())
        except BaseException:
            thread.shutdown()
            raise

    def run(self, work: Work[Answer], undone: Callable[[], None] | None = None) -> Awaitable[Answer]:
        """The answer of `work`, all of whose changes are on the disk by then, or none where it raises.

        Transactions are run in the order of the calls. Where the caller is cancelled, `work` may be done or not. Where
        its changes are undone, `undone` is called on the thread, before anything else is done.
        Raises StorageFull, StorageFailed.
        """
        return asyncio.get_running_loop().run_in_executor(self._thread, self._transaction, work, undone)

    def run_at_start(self, work: Work[Answer]) -> Answer:
        """The same before there is an event loop."""
        return self._thread.submit(self._transaction, work).result()

    def _transaction(self, work: Work[Answer], undone: Callable[[], None] | None = None) -> Answer:
        connection = self._connection
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            try:
                answer = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if undone is not None:
                    undone()
                # Some errors, such as a full disk, have ended the transaction already.
                if connection.in_transaction:
                    # On a disk that fails this can fail too, and the next transaction begins with it.
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._condition.explain(error) from error
        return answer

    async def probe(self) -> None:
        """Write something that changes nothing. Raises StorageFull, StorageFailed where that fails."""
        await self.run(_write_version)

    def close(self) -> None:
        """End what runs, and the thread."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()


def _write_version(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")


def _connect(path: Path, migrations: Migrations) -> sqlite3.Connection:
    try:
        # SQLite gives the files beside it the same permissions.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(path, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"The database {path} cannot be opened ({error}).") from error
    try:
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        _migrate(connection, path, migrations)
    except sqlite3.Error as error:
        connection.close()
        raise ConfigurationError(
            f"The database {path} cannot be used ({error}); move it away, or choose another --data-dir."
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Migrations) -> None:
    """Each step is a transaction, so that a migration that is cut off goes on from a whole version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise ConfigurationError(
            f"The database {path} was written by a newer Penstock (its version is {version}, this one knows "
            f"{len(migrations)}); serve with that one, or choose another --data-dir."
        )
    for number in range(version, len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        for statement in migrations[number]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("COMMIT")
