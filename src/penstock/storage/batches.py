"""Batches: how far each has come, and the results of its lines until they become files.

A line's result and the counts that include it are one transaction, so what a batch says of itself is true at any
moment, and a line that was counted is never computed again.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.storage.database import Database
from penstock.storage.errors import BatchHasEnded, BatchNotFound, TooManyBatches
from penstock.storage.files import StoredFile, check_room, find, insert
from penstock.storage.pagination import PageRequest, select
from penstock.storage.quotas import StorageQuota

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED = ("failed", "completed", "expired", "cancelled")
INPUT_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"


class BatchProblem(msgspec.Struct, frozen=True):
    """Why a batch has failed; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch; times are in seconds since 1970, and None while what they tell has not happened.

    `owner` is the tenant whose batch it is; for all others there is none.
    """

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    owner: str = ""
    status: BatchStatus = "validating"
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    problems: tuple[BatchProblem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


class LineResult(msgspec.Struct, frozen=True):
    """What the line with this number has come to: a line of the output file, or else of the error file."""

    line: int
    ok: bool
    output: bytes


_COLUMNS = ("record", "completed", "failed")
_decoder = msgspec.json.Decoder(Batch)


class BatchStore:
    """All batches of a server."""

    def __init__(self, database: Database, limits: StorageQuota) -> None:
        self.limits = limits
        self._database = database

    async def create(self, batch: Batch) -> None:
        """Keep a new batch. Raises RequestError where its input is none, or where too many have not ended."""

        def work(connection: sqlite3.Connection) -> None:
            file = find(connection, batch.input_file_id, batch.owner, "input_file_id")
            if file.purpose != INPUT_PURPOSE:
                raise InvalidParameter("input_file_id", f"is for {file.purpose!r}; upload it for {INPUT_PURPOSE!r}.")
            _make_place(connection, batch.owner, self.limits)
            connection.execute(
                "INSERT INTO batches (id, owner, status, input_file_id, created_at, record) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    *(batch.id, batch.owner, batch.status, batch.input_file_id, batch.created_at),
                    msgspec.json.encode(batch),
                ),
            )

        await self._database.run(work)

    async def get(self, batch_id: str, owner: str) -> Batch:
        """A batch of this owner. Raises BatchNotFound."""
        return await self._database.run(lambda connection: _find(connection, batch_id, owner))

    async def page(self, owner: str, page: PageRequest) -> tuple[list[Batch], bool]:
        """Some of the owner's batches, and whether more follow. Raises BatchNotFound where there is no `after`."""
        found = await self._database.run(lambda connection: select(connection, _COLUMNS, "batches", owner, page, None))
        if found is None:
            raise _not_found(page.after or "", "after")
        rows, more = found
        return [_batch(row) for row in rows], more

    async def unfinished(self) -> list[Batch]:
        """Those that have not ended, in the order in which they were made."""
        query = f"SELECT {', '.join(_COLUMNS)} FROM batches WHERE status NOT IN {ENDED} ORDER BY sequence"
        rows = await self._database.run(lambda connection: connection.execute(query).fetchall())
        return [_batch(row) for row in rows]

    async def change(self, batch: Batch, expected: BatchStatus, **fields: Any) -> Batch:
        """Set fields, if the batch still has the status that is expected; the batch as it is now."""

        def work(connection: sqlite3.Connection) -> Batch:
            now = _find(connection, batch.id, batch.owner)
            return _update(connection, now, **fields) if now.status == expected else now

        return await self._database.run(work)

    async def cancel(self, batch_id: str, owner: str, now: int) -> Batch:
        """Have a batch end early. Raises BatchNotFound, BatchHasEnded."""

        def work(connection: sqlite3.Connection) -> Batch:
            batch = _find(connection, batch_id, owner)
            if batch.status in ENDED or batch.status == "finalizing":
                raise BatchHasEnded(f"The batch {batch_id!r} is {batch.status}; there is nothing left to cancel.")
            if batch.status == "cancelling":
                return batch
            return _update(connection, batch, status="cancelling", cancelling_at=now)

        return await self._database.run(work)

    async def add_results(self, batch_id: str, results: Sequence[LineResult]) -> None:
        """Keep results and count them, each line once."""

        def work(connection: sqlite3.Connection) -> None:
            row = connection.execute("SELECT sequence FROM batches WHERE id = ?", (batch_id,)).fetchone()
            if row is None:
                raise _not_found(batch_id)
            counts, size = [0, 0], 0
            for result in results:
                done = connection.execute(
                    "INSERT OR IGNORE INTO results (batch, line, ok, output) VALUES (?, ?, ?, ?)",
                    (row[0], result.line, result.ok, result.output),
                )
                counts[not result.ok] += done.rowcount
                size += done.rowcount * len(result.output)
            connection.execute(
                "UPDATE batches SET completed = completed + ?, failed = failed + ?, result_bytes = result_bytes + ? "
                "WHERE sequence = ?",
                (*counts, size, row[0]),
            )

        await self._database.run(work)

    async def check_room(self, owner: str) -> None:
        """Raise StorageLimitReached where the tenant has no room for results, StorageFull where the server has none."""
        await self._database.run(lambda connection: check_room(connection, self.limits, owner))

    async def lines_done(self, batch_id: str) -> set[int]:
        """The numbers of the lines that have a result."""
        query = "SELECT line FROM results WHERE batch = (SELECT sequence FROM batches WHERE id = ?)"
        rows = await self._database.run(lambda connection: connection.execute(query, (batch_id,)).fetchall())
        return {line for (line,) in rows}

    async def results(self, batch_id: str, ok: bool, after: int, most: int) -> list[LineResult]:
        """The results of one kind that follow the line `after`, at most `most`, in the order of their lines."""
        query = (
            "SELECT line, ok, output FROM results WHERE batch = (SELECT sequence FROM batches WHERE id = ?) "
            "AND ok = ? AND line > ? ORDER BY line LIMIT ?"
        )
        values = (batch_id, ok, after, most)
        rows = await self._database.run(lambda connection: connection.execute(query, values).fetchall())
        return [LineResult(line, bool(kind), output) for line, kind, output in rows]

    async def finish(self, batch: Batch, files: Sequence[StoredFile], status: BatchStatus, **fields: Any) -> Batch:
        """The end of a batch: placed files exist, results have become them."""

        def work(connection: sqlite3.Connection) -> Batch:
            now = _find(connection, batch.id, batch.owner)
            for file in files:
                insert(connection, file)
            connection.execute(
                "DELETE FROM results WHERE batch = (SELECT sequence FROM batches WHERE id = ?)", (batch.id,)
            )
            connection.execute("UPDATE batches SET result_bytes = 0 WHERE id = ?", (batch.id,))
            return _update(connection, now, status=status, **fields)

        return await self._database.run(work)

    async def forget_old(self, before: int) -> None:
        """Forget batches that were made before a time, and have ended."""
        ended = f"status IN {ENDED} AND created_at < ?"
        await self._database.run(
            lambda connection: connection.execute(f"DELETE FROM batches WHERE {ended}", (before,)).rowcount
        )


def _make_place(connection: sqlite3.Connection, owner: str, limits: StorageQuota) -> None:
    """Forget what ended first where too much is remembered. Raises TooManyBatches where too many have not ended."""
    own = limits.of(owner)
    for whose, values, unfinished, most, asked in (
        ("owner = ?", (owner,), own.unfinished_batches, own.batches, "this API key's" if owner else "this server's"),
        ("TRUE", (), limits.unfinished_batches, limits.batches, "this server's"),
    ):
        query = f"SELECT coalesce(sum(status IN {ENDED}), 0), count(*) FROM batches WHERE {whose}"
        ended, count = connection.execute(query, values).fetchone()
        if count - ended >= unfinished:
            raise TooManyBatches(
                f"{unfinished} of {asked} batches have not ended, and no more are taken; wait for one, or cancel one "
                "with POST /v1/batches/{id}/cancel."
            )
        connection.execute(
            f"DELETE FROM batches WHERE sequence IN (SELECT sequence FROM batches WHERE status IN {ENDED} AND {whose} "
            "ORDER BY sequence LIMIT ?)",
            (*values, max(0, count + 1 - most)),
        )


def _find(connection: sqlite3.Connection, batch_id: str, owner: str) -> Batch:
    query = f"SELECT {', '.join(_COLUMNS)} FROM batches WHERE id = ? AND owner = ?"
    row = connection.execute(query, (batch_id, owner)).fetchone()
    if row is None:
        raise _not_found(batch_id)
    return _batch(row)


def _update(connection: sqlite3.Connection, batch: Batch, **fields: Any) -> Batch:
    changed = msgspec.structs.replace(batch, **fields)
    connection.execute(
        "UPDATE batches SET status = ?, record = ? WHERE id = ?",
        (changed.status, msgspec.json.encode(changed), batch.id),
    )
    return changed


def _batch(row: tuple[Any, ...]) -> Batch:
    record, completed, failed = row
    return msgspec.structs.replace(_decoder.decode(record), completed=completed, failed=failed)


def _not_found(batch_id: str, param: str | None = None) -> BatchNotFound:
    return BatchNotFound(f"There is no batch {batch_id[:80]!r}; it may have been forgotten with age.", param=param)
