"""Files: rows in the database, contents beside it. A file is there completely or not at all, and for its owner only.

Contents are written under another name, flushed to the disk and renamed, and only then does the row say that they
exist. What a row does not know is removed at the next start.
"""

import asyncio
import errno
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from penstock.server.errors import StorageFailed, StorageFull, StoredFileInUse, StoredFileNotFound
from penstock.server.storage.database import DISK_FULL, Database
from penstock.server.storage.directory import DataDirectory, sync_folder
from penstock.server.storage.limits import Limits
from penstock.server.storage.pages import Page, select

logger = logging.getLogger("penstock.server")

_WRITE_BYTES = 1 << 20
_UNFINISHED = "('validating', 'in_progress', 'finalizing', 'cancelling')"


class StoredFile(msgspec.Struct, frozen=True):
    """What is known of a file; times are in seconds since 1970. `filename` is the client's, and never a path here.

    `owner` is the tenant whose file it is; for all others there is none.
    """

    id: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int
    owner: str


_COLUMNS = StoredFile.__struct_fields__


class Incoming:
    """The contents of a file that does not exist yet. Ends with `FileStore.add`, `place` or `discard`."""

    def __init__(self, store: "FileStore", path: Path, room: int | None) -> None:
        self.id = path.name
        self.size = 0
        self._store = store
        self._path = path
        self._room = room
        self._file: BinaryIO | None = None
        self._parts: list[bytes] = []
        self._waiting = 0
        self._work: asyncio.Future[Any] | None = None

    async def write(self, data: bytes) -> None:
        """Append. Raises StorageFull where files that are being written would not fit together."""
        self.size += len(data)
        if self._room is not None:
            self._store.incoming += len(data)
            if self._store.incoming > self._room:
                raise all_full(self._store.limits)
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= _WRITE_BYTES:
            await self._in_thread(self._flush)

    async def place(self, path: Path) -> None:
        """Have everything on the disk under its final name."""
        await self._in_thread(lambda: self._finish(path))
        self._forget()

    async def discard(self) -> None:
        """Remove what was written, unless it was placed."""
        if self._work is not None:
            # A caller that was cancelled may have left it at work.
            await asyncio.wait((self._work,))
        self._forget()
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = None

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._work = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(self._work)
        except OSError as error:
            raise _explain(error) from error

    def _flush(self) -> None:
        if self._file is None:
            self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._file.write(b"".join(self._parts))
        self._parts, self._waiting = [], 0

    def _finish(self, path: Path) -> None:
        self._flush()
        assert self._file is not None, "it has been opened"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.rename(path)
        self._file = None
        sync_folder(path.parent)

    def _forget(self) -> None:
        if self._room is not None:
            self._store.incoming -= self.size
        self.size = 0


class FileStore:
    """All files of a server."""

    def __init__(self, database: Database, directory: DataDirectory, limits: Limits) -> None:
        self.limits = limits
        self.incoming = 0
        self._database = database
        self._contents = directory.folder("files")
        self._partial = directory.folder("incoming")

    def clean(self) -> None:
        """Remove what a server that was cut off has left; before anything else is asked."""
        for path in self._partial.iterdir():
            path.unlink()
        known = self._database.run_at_start(_all_ids)
        present = {path.name for path in self._contents.iterdir()}
        for name in present - known:
            (self._contents / name).unlink()
        lost = known - present
        if lost:
            logger.warning("The contents of %d files have gone from the data directory; they are forgotten.", len(lost))
            self._database.run_at_start(lambda connection: _delete_rows(connection, lost))

    async def begin(self, *, counted: bool = False) -> Incoming:
        """Begin a file. Raises StorageFull where there is no room for any, unless it is of results, counted before."""
        path = self._partial / f"file-{uuid.uuid4().hex}"
        if counted:
            return Incoming(self, path, None)
        await self.remove_expired()
        used = await self._database.run(self._check_room)
        return Incoming(self, path, self.limits.total_bytes - used)

    async def add(
        self, incoming: Incoming, owner: str, purpose: str, filename: str, seconds: int | None = None
    ) -> StoredFile:
        """Keep what was written, for `seconds`. Raises StorageFull."""
        file = await self.place(incoming, owner, purpose, filename, seconds)

        def work(connection: sqlite3.Connection) -> None:
            used = self._check_room(connection)
            if used + file.bytes > self.limits.total_bytes:
                raise all_full(self.limits)
            insert(connection, file)

        try:
            await self._database.run(work)
        except Exception:
            await self.remove_contents({file.id})
            raise
        return file

    async def place(
        self, incoming: Incoming, owner: str, purpose: str, filename: str, seconds: int | None
    ) -> StoredFile:
        """Keep the contents; the file exists once somebody has inserted it."""
        now, size = int(time.time()), incoming.size
        kept = self.limits.seconds_kept if seconds is None else seconds
        await incoming.place(self._contents / incoming.id)
        return StoredFile(incoming.id, purpose, filename, size, now, now + kept, owner)

    async def get(self, file_id: str, owner: str) -> StoredFile:
        """Raises StoredFileNotFound."""
        return await self._database.run(lambda connection: find(connection, file_id, owner))

    async def page(self, owner: str, page: Page, purpose: str | None) -> tuple[list[StoredFile], bool]:
        """Some of the owner's files, and whether more follow. Raises StoredFileNotFound where there is no `after`."""
        found = await self._database.run(lambda connection: select(connection, _COLUMNS, "files", owner, page, purpose))
        if found is None:
            raise not_found(page.after or "", "after")
        rows, more = found
        return [StoredFile(*row) for row in rows], more

    async def open(self, file_id: str, owner: str) -> tuple[StoredFile, BinaryIO]:
        """A file and its contents, which stay readable if it is deleted. Raises StoredFileNotFound."""
        file = await self.get(file_id, owner)
        try:
            return file, await asyncio.to_thread(open, self._contents / file.id, "rb")
        except FileNotFoundError:
            raise not_found(file_id) from None

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises StoredFileNotFound, and StoredFileInUse where a batch still reads it."""
        await self._database.run(lambda connection: _delete_unused(connection, file_id, owner))
        await self.remove_contents({file_id})

    async def remove_expired(self) -> None:
        """Delete files that are too old and that no batch still reads."""
        now = int(time.time())
        await self.remove_contents(await self._database.run(lambda connection: _delete_expired(connection, now)))

    def _check_room(self, connection: sqlite3.Connection) -> int:
        (count,) = connection.execute("SELECT count(*) FROM files").fetchone()
        if count >= self.limits.files:
            raise StorageFull(
                f"This server keeps at most {self.limits.files} files; delete some that are not needed with DELETE "
                "/v1/files/{id}."
            )
        used = used_bytes(connection)
        if used >= self.limits.total_bytes:
            raise all_full(self.limits)
        return used

    async def remove_contents(self, ids: set[str]) -> None:
        """Remove the contents of files that do not exist (any more)."""

        def work() -> None:
            for name in ids:
                (self._contents / name).unlink(missing_ok=True)

        if ids:
            await asyncio.to_thread(work)


def all_full(limits: Limits) -> StorageFull:
    """The error where there is no room for more bytes."""
    return StorageFull(
        f"This server keeps at most {limits.total_bytes} bytes of files and results; delete files that are not needed "
        "with DELETE /v1/files/{id}."
    )


def insert(connection: sqlite3.Connection, file: StoredFile) -> None:
    """Make a placed file exist."""
    marks = ", ".join("?" * len(_COLUMNS))
    connection.execute(f"INSERT INTO files ({', '.join(_COLUMNS)}) VALUES ({marks})", msgspec.structs.astuple(file))


def find(connection: sqlite3.Connection, file_id: str, owner: str, param: str | None = None) -> StoredFile:
    """The owner's file with this id. Raises StoredFileNotFound, which names `param`."""
    query = f"SELECT {', '.join(_COLUMNS)} FROM files WHERE id = ? AND owner = ?"
    row = connection.execute(query, (file_id, owner)).fetchone()
    if row is None:
        raise not_found(file_id, param)
    return StoredFile(*row)


def not_found(file_id: str, param: str | None = None) -> StoredFileNotFound:
    """The error for an id that no file has."""
    return StoredFileNotFound(f"There is no file {file_id[:80]!r}; it may have been deleted, or expired.", param=param)


def _explain(error: OSError) -> StorageFull | StorageFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFull(DISK_FULL)
    logger.error("a file could not be written", exc_info=error)
    return StorageFailed("The server's storage failed; its log has the cause.")


def _all_ids(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT id FROM files")}


def _delete_rows(connection: sqlite3.Connection, ids: set[str]) -> None:
    connection.executemany("DELETE FROM files WHERE id = ?", [(name,) for name in ids])


def _delete_unused(connection: sqlite3.Connection, file_id: str, owner: str) -> None:
    find(connection, file_id, owner)
    query = f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {_UNFINISHED}"
    reader = connection.execute(query, (file_id,)).fetchone()
    if reader is not None:
        raise StoredFileInUse(
            f"The file {file_id!r} is the input of {reader[0]!r}, which has not ended; cancel it first."
        )
    _delete_rows(connection, {file_id})


def _delete_expired(connection: sqlite3.Connection, now: int) -> set[str]:
    query = (
        "SELECT id FROM files WHERE expires_at <= ? AND id NOT IN "
        f"(SELECT input_file_id FROM batches WHERE status IN {_UNFINISHED})"
    )
    expired = {name for (name,) in connection.execute(query, (now,))}
    _delete_rows(connection, expired)
    return expired


def used_bytes(connection: sqlite3.Connection) -> int:
    """Of all files and results."""
    query = "SELECT (SELECT coalesce(sum(bytes), 0) FROM files) + (SELECT coalesce(sum(result_bytes), 0) FROM batches)"
    (used,) = connection.execute(query).fetchone()
    return int(used)
