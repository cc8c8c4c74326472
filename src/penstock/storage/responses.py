"""Responses that outlive their request, in SQLite: bounded in number, size and age."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.storage.condition import StorageCondition
from penstock.storage.database import Database, Migrations
from penstock.storage.errors import PreviousResponseNotFound, StorageUnavailable

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
    ("CREATE INDEX responses_by_owner ON responses (owner, used_at, sequence)",),
    (
        # In which responses an item is. The newest counts.
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


class ResponseQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept at most. What was not used for longest goes first.

    Attributes:
        responses: how many.
        total_bytes: of all inputs and responses.
        seconds_kept: since the last use.
        conversation_bytes: of the responses that one request continues.
        waiting_bytes: of responses that the disk has not taken yet.
        tenant_share: of number and bytes, what one tenant may take.
        tenant_bytes: at most, where a tenant's key says so, by name.
    """

    responses: int = 100_000
    total_bytes: int = 1000**3
    seconds_kept: int = 30 * 24 * 3600
    conversation_bytes: int = 32 * 1024**2
    waiting_bytes: int = 64 * 1024**2
    tenant_share: float = 1.0
    tenant_bytes: Mapping[str, int] = {}


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, and the items that were its input, both as JSON."""

    input: bytes
    response: bytes

    @property
    def size(self) -> int:
        """Bytes that the input and the response take."""
        return len(self.input) + len(self.response)

    def items(self) -> list[dict[str, Any]]:
        """The items of the input and the output, in their order."""
        items: list[dict[str, Any]] = msgspec.json.decode(self.input)
        return items + msgspec.json.decode(self.response, type=_Output).output

    def named(self, wanted: Container[str]) -> dict[str, dict[str, Any]]:
        """Those of its items whose ids are wanted."""
        return {item["id"]: item for item in self.items() if item["id"] in wanted}


class _Kept(msgspec.Struct, frozen=True):
    """A response on its way to the disk."""

    owner: str
    id: str
    previous: str | None
    response: StoredResponse


class _Output(msgspec.Struct):
    """Of a response, what later ones need."""

    output: list[dict[str, Any]]


def _item_ids(response: StoredResponse) -> set[str]:
    return {item["id"] for item in response.items()}


class ResponseStore:
    """The stored responses. For others than its owner, there is none.

    Attributes:
        condition: whether the disk works.
        waiting: those that are being written, and those that wait for a disk that has failed, by id.
    """

    def __init__(
        self, database: Database, limits: ResponseQuota, clock: Callable[[], float], condition: StorageCondition
    ) -> None:
        self.condition = condition
        self._database = database
        self._limits = limits
        self._clock = clock
        self._writes: set[asyncio.Task[None]] = set()
        self.waiting: dict[str, _Kept] = {}
        # Known to the database's thread only. Right once they are measured, until what changed them is undone.
        self._measured = False
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @classmethod
    def open(
        cls,
        path: Path,
        limits: ResponseQuota | None = None,
        clock: Callable[[], float] = time.time,
        condition: StorageCondition | None = None,
    ) -> "ResponseStore":
        """Open the database, or make it. Raises ConfigurationError where it cannot be used."""
        condition = condition or StorageCondition()
        return cls(Database.open(path, _MIGRATIONS, condition), limits or ResponseQuota(), clock, condition)

    async def probe(self) -> None:
        """Write something that changes nothing. Raises StorageFull, StorageFailed where that fails."""
        await self._database.probe()

    def close(self) -> None:
        """Close the database, and log what could not be stored."""
        self._database.close()
        if self.waiting:
            logger.error("%d responses could not be stored before the end.", len(self.waiting))

    def keep(self, response: dict[str, Any], items: list[dict[str, Any]], owner: str) -> None:
        """Store a response that has ended. Whatever is asked of the store later finds it.

        The client need not wait for the disk. Where that fails, the response is in memory until it works again.
        """
        contents = StoredResponse(msgspec.json.encode(items), msgspec.json.encode(response))
        kept = _Kept(owner, response["id"], response["previous_response_id"], contents)
        self.waiting[kept.id] = kept
        # Asked for at once: what is asked for next finds it on the disk.
        task = asyncio.get_running_loop().create_task(self._keep(kept, self._store(kept)))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """A response; None where it is not stored (any more)."""
        found = await self._database.run(lambda connection: self._get(connection, response_id, owner))
        # What was stored meanwhile had been asked for later, and so leaves this later.
        waiting = self.waiting.get(response_id)
        return waiting.response if found is None and waiting is not None and waiting.owner == owner else found

    async def delete(self, response_id: str, owner: str) -> bool:
        """Forget a response; False where it is not stored."""
        waiting = self.waiting.get(response_id)
        if waiting is not None and waiting.owner == owner:
            del self.waiting[response_id]
            # It may be on the disk already.
            with contextlib.suppress(StorageUnavailable):
                await self._delete_stored(response_id, owner)
            return True
        return await self._delete_stored(response_id, owner)

    async def conversation(self, response_id: str, owner: str) -> list[StoredResponse]:
        """A response and all that it went on from, the oldest first.

        Raises PreviousResponseNotFound where one of them is not stored (any more).
        """
        waiting = {each.id: each for each in self.waiting.values() if each.owner == owner}
        turns, used = await self._database.run(
            lambda connection: self._conversation(connection, response_id, owner, waiting)
        )
        # A disk that takes nothing does not keep a conversation from going on.
        with contextlib.suppress(StorageUnavailable):
            await self._database.run(lambda connection: self._mark_used(connection, used))
        return turns

    async def items(self, wanted: Mapping[str, str], owner: str) -> dict[str, dict[str, Any]]:
        """Items of stored responses, by their ids.

        `wanted` are the ids, each with the place in the request that refers to it. Raises InvalidParameter, naming the
        place, where one is not stored (any more), or where their responses are more than is read.
        """
        found = await self._database.run(lambda connection: self._items(connection, wanted, owner))
        if len(found) < len(wanted):
            # What was stored meanwhile had been asked for later, and so leaves this later.
            for kept in self.waiting.values():
                found |= kept.response.named(wanted) if kept.owner == owner else {}
        for identifier, place in wanted.items():
            if identifier not in found:
                message = f"no item {identifier[:80]!r} is stored here (any more); send the item itself."
                raise InvalidParameter(f"{place}.id", message)
        return found

    async def _delete_stored(self, response_id: str, owner: str) -> bool:
        return await self._database.run(
            lambda connection: self._delete(connection, response_id, owner), self._forget_measure
        )

    def _store(self, kept: _Kept) -> Awaitable[None]:
        return self._database.run(lambda connection: self._insert(connection, kept), self._forget_measure)

    async def _keep(self, kept: _Kept, stored: Awaitable[None]) -> None:
        delays = self.condition.delays()
        while True:
            try:
                await stored
                break
            except StorageUnavailable as error:
                size = sum(each.response.size for each in self.waiting.values())
                if self.condition.failure is None or size > self._limits.waiting_bytes:
                    logger.error("response %s could not be stored: %s", kept.id, error.message)
                    break
            await self.condition.recovery(delays.next())
            if kept.id not in self.waiting:
                break
            stored = self._store(kept)
        self.waiting.pop(kept.id, None)

    def _measure(self, connection: sqlite3.Connection) -> None:
        self._counts.clear()
        self._bytes.clear()
        query = "SELECT owner, COUNT(*), SUM(bytes) FROM responses GROUP BY owner"
        for owner, count, size in connection.execute(query):
            self._counts[owner], self._bytes[owner] = count, size
        self._measured = True

    def _forget_measure(self) -> None:
        self._measured = False

    def _insert(self, connection: sqlite3.Connection, kept: _Kept) -> None:
        if not self._measured:
            self._measure(connection)
        now, size = int(self._clock()), kept.response.size
        old = "SELECT sequence, owner, bytes FROM responses WHERE used_at <= ? ORDER BY used_at, sequence"
        for row in connection.execute(old, (now - self._limits.seconds_kept,)).fetchall():
            self._forget(connection, *row)
        while (owner := self._too_much(kept.owner, size)) is not None:
            oldest = "SELECT sequence, owner, bytes FROM responses WHERE owner = ? ORDER BY used_at, sequence LIMIT 1"
            self._forget(connection, *connection.execute(oldest, (owner,)).fetchone())
        connection.execute(
            "INSERT INTO responses (owner, id, previous, used_at, bytes, input, response) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kept.owner, kept.id, kept.previous, now, size, kept.response.input, kept.response.response),
        )
        (sequence,) = connection.execute("SELECT last_insert_rowid()").fetchone()
        rows = [(kept.owner, item, sequence) for item in _item_ids(kept.response)]
        connection.executemany("INSERT INTO response_items (owner, id, response_sequence) VALUES (?, ?, ?)", rows)
        self._counts[kept.owner] += 1
        self._bytes[kept.owner] += size

    def _too_much(self, owner: str, size: int) -> str | None:
        """Whose oldest response goes, so that the owner may have one more of this size; None where there is room."""
        limits, count, used = self._limits, self._counts, self._bytes
        most = limits.tenant_bytes.get(owner, limits.total_bytes * limits.tenant_share)
        if count[owner] and (
            count[owner] >= max(1, limits.responses * limits.tenant_share) or used[owner] + size > most
        ):
            return owner
        if count.total() and (count.total() >= limits.responses or used.total() + size > limits.total_bytes):
            # The owner with the most bytes gives way.
            return max((each for each in count if count[each]), key=lambda each: (used[each], each))
        return None

    def _forget(self, connection: sqlite3.Connection, sequence: int, owner: str, size: int) -> None:
        connection.execute("DELETE FROM responses WHERE sequence = ?", (sequence,))
        self._counts[owner] -= 1
        self._bytes[owner] -= size

    def _get(self, connection: sqlite3.Connection, response_id: str, owner: str) -> StoredResponse | None:
        query = "SELECT input, response FROM responses WHERE id = ? AND owner = ? AND used_at > ?"
        row = connection.execute(query, (response_id, owner, self._clock() - self._limits.seconds_kept)).fetchone()
        return None if row is None else StoredResponse(*row)

    def _items(
        self, connection: sqlite3.Connection, wanted: Mapping[str, str], owner: str
    ) -> dict[str, dict[str, Any]]:
        """The items that there are. Of those that several responses have, the newest."""
        oldest = self._clock() - self._limits.seconds_kept
        query = (
            "SELECT MAX(sequence) FROM response_items JOIN responses ON sequence = response_sequence "
            "WHERE response_items.owner = ? AND response_items.id = ? AND used_at > ?"
        )
        places: dict[int | None, str] = {}
        for identifier, place in wanted.items():
            (sequence,) = connection.execute(query, (owner, identifier, oldest)).fetchone()
            places[sequence] = place
        found: dict[str, dict[str, Any]] = {}
        size = 0
        for sequence in sorted(each for each in places if each is not None):
            row = connection.execute("SELECT input, response FROM responses WHERE sequence = ?", (sequence,)).fetchone()
            response = StoredResponse(*row)
            size += response.size
            if size > self._limits.conversation_bytes:
                most = self._limits.conversation_bytes
                message = f"the responses that have these items are more than the {most} bytes that are read."
                raise InvalidParameter(places[sequence], message)
            found |= response.named(wanted)
        return found

    def _delete(self, connection: sqlite3.Connection, response_id: str, owner: str) -> bool:
        query = "DELETE FROM responses WHERE id = ? AND owner = ? RETURNING bytes"
        row = connection.execute(query, (response_id, owner)).fetchone()
        if row is None:
            return False
        self._counts[owner] -= 1
        self._bytes[owner] -= row[0]
        return True

    def _conversation(
        self, connection: sqlite3.Connection, response_id: str, owner: str, waiting: dict[str, _Kept]
    ) -> tuple[list[StoredResponse], list[str]]:
        """The responses, the oldest first, and the ids of those that are on the disk."""
        now, size = int(self._clock()), 0
        used: list[str] = []
        query = "SELECT previous, input, response FROM responses WHERE id = ? AND owner = ? AND used_at > ?"
        turns: list[StoredResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            if wanted in waiting:
                turns.append(waiting[wanted].response)
                wanted = waiting[wanted].previous
            else:
                row = connection.execute(query, (wanted, owner, now - self._limits.seconds_kept)).fetchone()
                if row is None:
                    raise PreviousResponseNotFound(_missing(response_id, wanted), param="previous_response_id")
                used.append(wanted)
                wanted, items, response = row
                turns.append(StoredResponse(items, response))
            size += turns[-1].size
            if size > self._limits.conversation_bytes:
                raise InvalidParameter(
                    "previous_response_id",
                    f"the conversation is longer than the {self._limits.conversation_bytes} bytes that are read.",
                )
        return turns[::-1], used

    def _mark_used(self, connection: sqlite3.Connection, ids: list[str]) -> None:
        now = int(self._clock())
        connection.executemany("UPDATE responses SET used_at = ? WHERE id = ?", [(now, each) for each in ids])


def _missing(asked: str, missing: str) -> str:
    if asked == missing:
        return (
            f"previous_response_id: no response {asked[:80]!r} is stored here (any more); send the whole conversation."
        )
    return (
        f"previous_response_id: {asked[:80]!r} goes on from {missing[:80]!r}, which is not stored any more; send the "
        "whole conversation."
    )
