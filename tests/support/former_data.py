"""A data directory as servers had it before their tables had versions by Alembic, made by the statements of then."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

# The last version, and the first one, which had no owners.
FILES = (
    "CREATE TABLE files (sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, purpose TEXT NOT NULL, "
    "filename TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL)",
    "CREATE INDEX files_by_expiry ON files (expires_at)",
    "CREATE TABLE batches (sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, "
    "input_file_id TEXT NOT NULL, created_at INTEGER NOT NULL, completed INTEGER NOT NULL DEFAULT 0, failed INTEGER "
    "NOT NULL DEFAULT 0, result_bytes INTEGER NOT NULL DEFAULT 0, record BLOB NOT NULL)",
    "CREATE INDEX batches_by_status ON batches (status)",
    "CREATE TABLE results (batch INTEGER NOT NULL REFERENCES batches (sequence) ON DELETE CASCADE, line INTEGER NOT "
    "NULL, ok INTEGER NOT NULL, output BLOB NOT NULL, PRIMARY KEY (batch, line))",
)
FILES_OF_OWNERS = (
    "ALTER TABLE files ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX files_by_owner ON files (owner, sequence)",
    "CREATE INDEX batches_by_owner ON batches (owner, sequence)",
)
RESPONSES = (
    "CREATE TABLE responses (sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, previous TEXT, "
    "used_at INTEGER NOT NULL, bytes INTEGER NOT NULL, input BLOB NOT NULL, response BLOB NOT NULL)",
    "CREATE INDEX responses_by_use ON responses (used_at, sequence)",
)
RESPONSES_OF_OWNERS = (
    "ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX responses_by_owner ON responses (owner, used_at, sequence)",
    "CREATE TABLE response_items (owner TEXT NOT NULL, id TEXT NOT NULL, response_sequence INTEGER NOT NULL REFERENCES "
    "responses (sequence) ON DELETE CASCADE, PRIMARY KEY (owner, id, response_sequence)) WITHOUT ROWID",
    "CREATE INDEX items_by_response ON response_items (response_sequence)",
)


def insert(database: sqlite3.Connection, table: str, **values: object) -> None:
    """A row, as JSON where a value is a dictionary or a list."""
    given = [json.dumps(each).encode() if isinstance(each, dict | list) else each for each in values.values()]
    marks = ", ".join("?" * len(values))
    database.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", given)


@contextlib.contextmanager
def former(path: Path, version: int, *statements: str) -> Iterator[sqlite3.Connection]:
    """A file of that version, in the way in which servers left it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for statement in statements:
            database.execute(statement)
        yield database
        database.execute(f"PRAGMA user_version = {version}")


def first_version(folder: Path) -> None:
    """What a server without owners has kept: a file, a batch and a response."""
    (folder / "files").mkdir()
    contents, now = b"{}", int(time.time())
    (folder / "files" / "file-old").write_bytes(contents)
    batch = {"id": "batch_old", "endpoint": "/v1/completions", "input_file_id": "file-old", "status": "cancelled"}
    batch |= {"created_at": now, "expires_at": now + 1}
    with former(folder / "files.sqlite", 1, *FILES) as files:
        times = {"created_at": now, "expires_at": now + 1000}
        insert(files, "files", id="file-old", purpose="batch", filename="x", bytes=len(contents), **times)
        row = {"id": "batch_old", "status": "cancelled", "input_file_id": "file-old", "created_at": now}
        insert(files, "batches", **row, record=batch)
    with former(folder / "responses.sqlite", 1, *RESPONSES) as responses:
        response = {"id": "resp_old", "output": [{"id": "msg_old", "type": "message"}]}
        insert(responses, "responses", id="resp_old", used_at=now, bytes=4, input=[], response=response)


def last_version(folder: Path, contents: bytes, done: int) -> None:
    """What a server of the last version has kept that was killed: of alice's batch, some lines were done.

    Her conversation has three responses, and bob's one. What was made last of each kind was deleted.
    """
    (folder / "files").mkdir()
    (folder / "files" / "file-in").write_bytes(contents)
    now = int(time.time())
    batch = {"id": "batch_half", "endpoint": "/v1/completions", "input_file_id": "file-in", "status": "in_progress"}
    batch |= {"created_at": now, "expires_at": now + 80_000, "owner": "alice", "total": len(contents.splitlines())}
    with former(folder / "files.sqlite", 2, *FILES, *FILES_OF_OWNERS) as files:
        size = {"bytes": len(contents), "created_at": now, "expires_at": now + 100_000}
        for name in ("file-in", "file-gone"):
            insert(files, "files", id=name, purpose="batch", filename="in.jsonl", owner="alice", **size)
        row = {"status": "in_progress", "input_file_id": "file-in", "created_at": now, "owner": "alice"}
        insert(files, "batches", id="batch_half", **row, completed=done, result_bytes=3 * done, record=batch)
        for number in range(1, done + 1):
            insert(files, "results", batch=1, line=number, ok=1, output=b"%d\n" % number)
        files.execute("DELETE FROM files WHERE id = 'file-gone'")
    with former(folder / "responses.sqlite", 4, *RESPONSES, *RESPONSES_OF_OWNERS) as responses:
        previous = None
        owners = {"a": "alice", "b": "alice", "c": "alice", "d": "bob", "e": ""}
        for number, (name, owner) in enumerate(owners.items(), 1):
            items, output = [{"id": f"in_{name}", "type": "message"}], [{"id": f"out_{name}", "type": "message"}]
            fields = {"previous": previous if owner == "alice" else None, "owner": owner, "used_at": now, "bytes": 100}
            insert(responses, "responses", id=name, **fields, input=items, response={"id": name, "output": output})
            for item in (f"in_{name}", f"out_{name}"):
                insert(responses, "response_items", owner=owner, id=item, response_sequence=number)
            previous = name
        responses.execute("PRAGMA foreign_keys = ON")
        responses.execute("DELETE FROM responses WHERE id = 'e'")
