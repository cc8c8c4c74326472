"""What servers kept in files of SQLite before these had versions by Alembic: its rows are taken over, where they are.

Each file said in its `user_version` which of the versions below it had.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from penstock.core.errors import ConfigurationError
from penstock.database.connection import Database
from penstock.database.errors import DatabaseUnavailable
from penstock.database.versions import upgrade

# The statements that lead from each version to the next; the first ones made it.
Versions = Sequence[Sequence[str]]
# What the file says since then, so that an older server, which would not understand it, says why it cannot use it.
TAKEN_OVER = 1000

FILES: Versions = (
    (
        """CREATE TABLE files (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            purpose TEXT NOT NULL,
            filename TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL
        )""",
        "CREATE INDEX files_by_expiry ON files (expires_at)",
        """CREATE TABLE batches (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            status TEXT NOT NULL,
            input_file_id TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            completed INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            result_bytes INTEGER NOT NULL DEFAULT 0,
            record BLOB NOT NULL
        )""",
        "CREATE INDEX batches_by_status ON batches (status)",
        """CREATE TABLE results (
            batch INTEGER NOT NULL REFERENCES batches (sequence) ON DELETE CASCADE,
            line INTEGER NOT NULL,
            ok INTEGER NOT NULL,
            output BLOB NOT NULL,
            PRIMARY KEY (batch, line)
        )""",
    ),
    (
        "ALTER TABLE files ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX files_by_owner ON files (owner, sequence)",
        "CREATE INDEX batches_by_owner ON batches (owner, sequence)",
    ),
)
RESPONSES: Versions = (
    (
        """CREATE TABLE responses (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            previous TEXT,
            used_at INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            input BLOB NOT NULL,
            response BLOB NOT NULL
        )""",
        "CREATE INDEX responses_by_use ON responses (used_at, sequence)",
    ),
    ("ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''",),
    ("CREATE INDEX responses_by_owner ON responses (owner, used_at, sequence)",),
    (
        """CREATE TABLE response_items (
            owner TEXT NOT NULL,
            id TEXT NOT NULL,
            response_sequence INTEGER NOT NULL REFERENCES responses (sequence) ON DELETE CASCADE,
            PRIMARY KEY (owner, id, response_sequence)
        ) WITHOUT ROWID""",
        "CREATE INDEX items_by_response ON response_items (response_sequence)",
        *(
            f"""INSERT OR IGNORE INTO response_items SELECT owner, json_extract(item.value, '$.id'), sequence
            FROM responses, json_each(CAST({column} AS TEXT), '{path}') AS item
            WHERE json_type(item.value, '$.id') = 'text'"""
            for column, path in (("input", "$"), ("response", "$.output"))
        ),
    ),
)

# Of each table that a file had, the columns whose values go on as they are, and what other columns begin with. A table
# comes before those that refer to it.
_MOVED: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "files": ("files", "sequence, id, owner, purpose, filename, bytes, created_at, expires_at", {}),
    "batches": (
        "batches",
        "sequence, id, owner, status, input_file_id, created_at, completed, failed, result_bytes, record",
        {"runner": "''", "holder": "''", "held_until": "0"},
    ),
    "results": ("batch_results", "batch, line, ok, output", {}),
    "responses": ("responses", "sequence, id, owner, previous, used_at, bytes, input, response", {}),
    "response_items": ("response_items", "owner, id, response_sequence", {}),
}


def open_file(path: Path, former: Versions) -> Database:
    """A database in a file, with the tables of this version, and all that was in those of `former` versions.

    Raises ConfigurationError where a newer Penstock wrote it, or where it cannot be used.
    """
    database = Database.open_file(path)
    try:
        with database.begin() as connection:
            version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
            taken = [] if version == TAKEN_OVER else _put_aside(connection, version, path, former)
            upgrade(connection)
            if version != TAKEN_OVER:
                _take_over(connection, taken)
                connection.exec_driver_sql(f"PRAGMA user_version = {TAKEN_OVER}")
    except (DBAPIError, DatabaseUnavailable) as error:
        database.close()
        cause = error.__cause__ if isinstance(error, DatabaseUnavailable) else error
        said = getattr(cause, "orig", cause)
        raise ConfigurationError(
            f"The database {path} cannot be used ({said}); move it away, or choose another --data-dir."
        ) from error
    except BaseException:
        database.close()
        raise
    return database


def _put_aside(connection: Connection, version: int, path: Path, former: Versions) -> list[str]:
    """Give tables of a former version other names, which are returned, after bringing them to the last one."""
    if version == 0:
        return []
    if version > len(former):
        raise ConfigurationError(
            f"The database {path} was written by a newer Penstock (its version is {version}, this one knows "
            f"{len(former)}); serve with that one, or choose another --data-dir."
        )
    for statements in former[version:]:
        for statement in statements:
            connection.exec_driver_sql(statement)
    indexes = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    for name in connection.exec_driver_sql(indexes).scalars().all():
        connection.exec_driver_sql(f"DROP INDEX {name}")
    there = connection.exec_driver_sql("SELECT name FROM sqlite_schema WHERE type = 'table'").scalars().all()
    tables = [name for name in _MOVED if name in there]
    for name in tables:
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO former_{name}")
    return tables


def _take_over(connection: Connection, tables: Sequence[str]) -> None:
    for name in tables:
        new, same, further = _MOVED[name]
        columns, values = ", ".join((same, *further)), ", ".join((same, *further.values()))
        connection.exec_driver_sql(f"INSERT INTO {new} ({columns}) SELECT {values} FROM former_{name}")
    if "responses" in tables:
        totals = "SELECT owner, count(*), sum(bytes) FROM responses GROUP BY owner"
        connection.exec_driver_sql(f"INSERT INTO response_totals (owner, responses, bytes) {totals}")
    for name in tables[::-1]:
        # No number is given twice, of what was deleted before neither.
        last = f"SELECT seq FROM sqlite_sequence WHERE name = 'former_{name}'"
        new = _MOVED[name][0]
        for (number,) in connection.exec_driver_sql(last).all():
            connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (new,))
            connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (new, number))
        connection.exec_driver_sql(f"DROP TABLE former_{name}")
