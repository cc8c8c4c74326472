"""Responses that outlive their request, in SQLite: bounded in number, size and age."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import InvalidParameter, PenstockError
from penstock.server.errors import PreviousResponseNotFound
from penstock.server.storage.database import Database, Migrations

logger = logging.getLogger("penstock.server")

_MIGRATIONS: Migrations = (
    (
        # `used_at` is when it was made, or another response last went on from it. `input` and `response` are JSON.
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
    (
        # Whose it is: the name of a tenant, or nothing where the server has no keys.
        "ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    ),
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept at most. What was not used for longest goes first.

    Attributes:
        responses: how many.
        total_bytes: of all inputs and responses.
        seconds_kept: since the last use.
        conversation_bytes: of the responses that one request continues.
    """

    responses: int = 100_000
    total_bytes: int = 1000**3
    seconds_kept: int = 30 * 24 * 3600
    conversation_bytes: int = 32 * 1024**2


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, and the items that were its input, both as JSON."""

    input: bytes
    response: bytes

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.input) + len(self.response)

    def items(self) -> list[dict[str, Any]]:
        """Input and output."""
        items: list[dict[str, Any]] = msgspec.json.decode(self.input)
        return items + msgspec.json.decode(self.response, type=_Output).output


class _Output(msgspec.Struct):
    """Of a response, what later ones need."""

    output: list[dict[str, Any]]


class ResponseStore:
    """The stored responses. For others than its owner, there is none."""

    def __init__(self, database: Database, limits: Limits, clock: Callable[[], float]) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock
        self._writes: set[asyncio.Task[None]] = set()
        # Known to the database's thread only.
        self._count, self._bytes = 0, 0
        database.run_at_start(self._measure)

    @classmethod
    def open(cls, path: Path, limits: Limits | None = None, clock: Callable[[], float] = time.time) -> "ResponseStore":
        """Open the database, or make it. Raises ConfigurationError where it cannot be used."""
        return cls(Database.open(path, _MIGRATIONS), limits or Limits(), clock)

    def close(self) -> None:
        """End what runs."""
        self._database.close()

    def keep(self, response: dict[str, Any], items: list[dict[str, Any]], owner: str) -> None:
        """Store a response that has ended. Whatever is asked of the store later finds it.

        The client need not wait for the disk: where that fails, the log says so.
        """
        row = (owner, response["id"], response["previous_response_id"])
        contents = (msgspec.json.encode(items), msgspec.json.encode(response))
        # Asked for at once: whoever looks for it in this moment must find it.
        stored = self._database.run(lambda connection: self._insert(connection, row, contents))
        task = asyncio.get_running_loop().create_task(self._finish(row[1], stored))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """A response; None where it is not stored (any more)."""
        return await self._database.run(lambda connection: self._get(connection, response_id, owner))

    async def delete(self, response_id: str, owner: str) -> bool:
        """Forget a response; False where it is not stored."""
        return await self._database.run(lambda connection: self._delete(connection, response_id, owner))

    async def conversation(self, response_id: str, owner: str) -> list[StoredResponse]:
        """A response and all that it went on from, the oldest first.

        Raises PreviousResponseNotFound where one of them is not stored (any more).
        """
        return await self._database.run(lambda connection: self._conversation(connection, response_id, owner))

    async def _finish(self, response_id: str, stored: Awaitable[None]) -> None:
        try:
            await stored
        except PenstockError as error:
            logger.error("response %s could not be stored: %s", response_id, error.message)
            # What the failed transaction had counted was undone.
            with contextlib.suppress(PenstockError):
                await self._database.run(self._measure)

    def _measure(self, connection: sqlite3.Connection) -> None:
        query = "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM responses"
        self._count, self._bytes = connection.execute(query).fetchone()

    def _insert(
        self, connection: sqlite3.Connection, row: tuple[str, str, str | None], contents: tuple[bytes, bytes]
    ) -> None:
        now, size, limits = int(self._clock()), sum(map(len, contents)), self._limits
        oldest = "SELECT sequence, bytes, used_at FROM responses ORDER BY used_at, sequence LIMIT 1"
        while self._count:
            sequence, freed, used_at = connection.execute(oldest).fetchone()
            full = self._count >= limits.responses or self._bytes + size > limits.total_bytes
            if not full and used_at > now - limits.seconds_kept:
                break
            connection.execute("DELETE FROM responses WHERE sequence = ?", (sequence,))
            self._count, self._bytes = self._count - 1, self._bytes - freed
        connection.execute(
            "INSERT INTO responses (owner, id, previous, used_at, bytes, input, response) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*row, now, size, *contents),
        )
        self._count, self._bytes = self._count + 1, self._bytes + size

    def _get(self, connection: sqlite3.Connection, response_id: str, owner: str) -> StoredResponse | None:
        query = "SELECT input, response FROM responses WHERE id = ? AND owner = ? AND used_at > ?"
        row = connection.execute(query, (response_id, owner, self._clock() - self._limits.seconds_kept)).fetchone()
        return None if row is None else StoredResponse(*row)

    def _delete(self, connection: sqlite3.Connection, response_id: str, owner: str) -> bool:
        query = "DELETE FROM responses WHERE id = ? AND owner = ? RETURNING bytes"
        row = connection.execute(query, (response_id, owner)).fetchone()
        if row is None:
            return False
        self._count, self._bytes = self._count - 1, self._bytes - row[0]
        return True

    def _conversation(self, connection: sqlite3.Connection, response_id: str, owner: str) -> list[StoredResponse]:
        now, size = int(self._clock()), 0
        query = "SELECT previous, input, response FROM responses WHERE id = ? AND owner = ? AND used_at > ?"
        turns: list[StoredResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            row = connection.execute(query, (wanted, owner, now - self._limits.seconds_kept)).fetchone()
            if row is None:
                raise PreviousResponseNotFound(_missing(response_id, wanted), param="previous_response_id")
            connection.execute("UPDATE responses SET used_at = ? WHERE id = ?", (now, wanted))
            wanted, items, response = row
            turns.append(StoredResponse(items, response))
            size += turns[-1].size
            if size > self._limits.conversation_bytes:
                raise InvalidParameter(
                    "previous_response_id",
                    f"the conversation is longer than the {self._limits.conversation_bytes} bytes that are read.",
                )
        return turns[::-1]


def _missing(asked: str, missing: str) -> str:
    if asked == missing:
        return (
            f"previous_response_id: no response {asked[:80]!r} is stored here (any more); send the whole conversation."
        )
    return (
        f"previous_response_id: {asked[:80]!r} goes on from {missing[:80]!r}, which is not stored any more; send the "
        "whole conversation."
    )
