"""Opens a database, brings it to this version's tables, and says in a sentence why it cannot be used."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from penstock.core.errors import ConfigurationError
from penstock.database.errors import DatabaseUnavailable
from penstock.database.versions import migrate, upgrade

_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "sqlite": "sqlite"}
# Seconds that a server has to take a connection, and for one statement; for which SQLite waits for another writer.
_CONNECT_SECONDS, _STATEMENT_SECONDS, _LOCK_SECONDS = 3, 10, 10


class Database:
    """An open database, for any thread, until `close`.

    Attributes:
        name: where it is, without a password.
    """

    def __init__(self, engine: Engine) -> None:
        self.name = engine.url.render_as_string(hide_password=True)
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> "Database":
        """Open it, without asking anything of it yet. Raises ConfigurationError for what is no address of one."""
        return cls(_engine(database_url(url)))

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
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            if not _is_away(error):
                raise
            raise DatabaseUnavailable(f"The database {self.name} does not answer ({_cause(error)}).") from error

    def close(self) -> None:
        """Close the connections that are open."""
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
        event.listen(engine, "connect", _prepare_sqlite)
        # The driver begins a transaction too late for one that reads first; its first statement takes the lock.
        event.listen(engine, "begin", lambda connection: connection.execute(text("BEGIN IMMEDIATE")))
        return engine
    timeout = f"-c statement_timeout={_STATEMENT_SECONDS}s -c lock_timeout={_STATEMENT_SECONDS}s"
    arguments = {"connect_timeout": _CONNECT_SECONDS, "options": timeout}
    return create_engine(url, pool_size=2, max_overflow=4, pool_pre_ping=True, connect_args=arguments)


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None
    for statement in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {statement}")


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
