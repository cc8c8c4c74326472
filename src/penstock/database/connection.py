"""Opens a database, brings it to this version's tables, and says in a sentence why it cannot be used."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from penstock.core.errors import ConfigurationError
from penstock.database.errors import DatabaseUnavailable
from penstock.database.versions import migrate, upgrade

_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "sqlite": "sqlite"}
# Seconds that a server has to take a connection, and for one statement; for which SQLite waits for another writer.
_CONNECT_SECONDS, _STATEMENT_SECONDS, _LOCK_SECONDS = 3, 10, 10
_TIMEOUTS = f"SET LOCAL statement_timeout = '{_STATEMENT_SECONDS}s'; SET LOCAL lock_timeout = '{_STATEMENT_SECONDS}s'"
# Every commit is on the disk before it is reported, and is a whole one.
_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
# Of a file that one process has.
_EXCLUSIVE_PRAGMAS = (
    # The log's index is in memory, and reading works on a full disk.
    "locking_mode = EXCLUSIVE",
    # Neither room elsewhere nor a file descriptor is needed for what is temporary.
    "temp_store = MEMORY",
    *_PRAGMAS,
    # The log gives its space back after a large transaction.
    "journal_size_limit = 67108864",
)


class Database:
    """An open database, for any thread, until `close`.

    Attributes:
        name: where it is, without a password.
    """

    def __init__(self, engine: Engine) -> None:
        self.name = engine.url.render_as_string(hide_password=True)
        self._engine = engine
        self._under_way, self._ended = 0, threading.Condition()

    @classmethod
    def open(cls, url: str) -> "Database":
        """Open it, without asking anything of it yet. Raises ConfigurationError for what is no address of one."""
        try:
            return cls(_engine(database_url(url)))
        except ImportError:
            message = "--database postgresql:// needs the extra gateway: pip install 'penstock[gateway]'."
            raise ConfigurationError(message) from None

    @classmethod
    def open_file(cls, path: Path) -> "Database":
        """A file of SQLite that no other process uses, and one thread at a time, made where there is none.

        Raises ConfigurationError where it cannot be made.
        """
        try:
            # SQLite gives the files beside it the same permissions.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise ConfigurationError(f"The database {path} cannot be opened ({error}).") from error
        arguments = {"check_same_thread": False}
        url = URL.create("sqlite", database=str(path))
        return cls(_sqlite(create_engine(url, poolclass=StaticPool, connect_args=arguments), _EXCLUSIVE_PRAGMAS))

    def upgrade(self) -> None:
        """Make its tables those of this version. Raises ConfigurationError, DatabaseUnavailable."""
        try:
            with self.begin() as connection:
                upgrade(connection)
        except DBAPIError as error:
            raise ConfigurationError(f"The database {self.name} cannot be used ({_cause(error)}).") from error

    def migrate(self, version: str) -> None:
        """Make its tables those of a version, newer or older. Raises ConfigurationError for an unknown one."""
        with self.begin() as connection:
            migrate(connection, version)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction, which is kept where the block ends without an error. Raises DatabaseUnavailable."""
        with self._ended:
            self._under_way += 1
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            if not _is_away(error):
                raise
            raise DatabaseUnavailable(f"The database {self.name} does not answer ({_cause(error)}).") from error
        finally:
            with self._ended:
                self._under_way -= 1
                self._ended.notify_all()

    def close(self) -> None:
        """Close the connections once what is under way has ended: tasks that are cancelled leave threads behind."""
        with self._ended:
            self._ended.wait_for(lambda: not self._under_way)
        self._engine.dispose()


def database_url(given: str) -> URL:
    """An address with its driver. Raises ConfigurationError, which never has a password in it."""
    if re.fullmatch(r"[^:/?#]+\.(sqlite|db)|/.+|\.{1,2}/.+", given):
        given = f"sqlite:///{given}"
    try:
        url = make_url(given)
    except ArgumentError:
        raise ConfigurationError(
            "--database is no address of a database; give one like sqlite:///FILE, or "
            "postgresql://USER@HOST/NAME with the password in PGPASSWORD."
        ) from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise ConfigurationError(f"--database is of {url.drivername!r}; postgresql:// and sqlite:// are known.")
    if driver == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ConfigurationError("--database sqlite:// has no file; give one like sqlite:///FILE.")
        folder = Path(url.database).absolute().parent
        if not folder.is_dir():
            raise ConfigurationError(f"--database: the folder {folder} is not there; make it first.")
    return url.set(drivername=driver)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _LOCK_SECONDS})
        return _sqlite(engine, _PRAGMAS)
    # A pooler between, such as PgBouncer, gives each transaction another connection: nothing is set for longer.
    arguments = {"connect_timeout": _CONNECT_SECONDS, "prepare_threshold": None}
    engine = create_engine(url, pool_size=2, max_overflow=4, pool_pre_ping=True, connect_args=arguments)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(_TIMEOUTS))
    return engine


def _sqlite(engine: Engine, pragmas: Sequence[str]) -> Engine:
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", prepare)
    # The driver begins a transaction too late for one that reads first; its first statement takes the lock.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def alone(connection: Connection, what: str) -> None:
    """Wait until no other transaction that has asked for the same runs; until this one ends, none does."""
    # Those of SQLite run one after another anyway.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:what))"), {"what": f"penstock {what}"})


def clock(connection: Connection) -> float:
    """Seconds since 1970, which all who use the database agree on."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    # A file is on one machine.
    return time.time()


def _is_away(error: DBAPIError) -> bool:
    """Whether the same may work later: the connection, a lock or the server's disk was the reason."""
    return error.connection_invalidated or type(error.orig).__name__ in _PASSING


_PASSING = frozenset(
    {
        *("OperationalError", "InterfaceError", "AdminShutdown", "CannotConnectNow", "CrashShutdown", "DiskFull"),
        *("QueryCanceled", "LockNotAvailable", "TooManyConnections", "DeadlockDetected", "SerializationFailure"),
    }
)


def _cause(error: SQLAlchemyError) -> str:
    """The first line of what its driver says."""
    said = str(getattr(error, "orig", error)).strip()
    return said.splitlines()[0] if said else type(error).__name__
