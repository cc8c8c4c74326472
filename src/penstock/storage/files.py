"""Files: rows in the database, contents beside it. A file is there completely or not at all, and for its owner only.

Contents are written under another name, flushed to the disk and renamed, and only then does the row say that they
exist. What a row does not know is removed at the next start.
"""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from penstock.storage.condition import StorageCondition
from penstock.storage.database import Database
from penstock.storage.directory import DataDirectory, sync_folder
from penstock.storage.errors import (
    StorageFull,
    StorageLimitReached,
    StorageUnavailable,
    StoredFileInUse,
    StoredFileNotFound,
)
from penstock.storage.pagination import PageRequest, select
from penstock.storage.quotas import StorageQuota

logger = logging.getLogger("penstock.server")

_WRITE_BYTES = 1 << 20
# What a look at a disk that was full wants to find free.
_PROBE_BYTES = 1 << 20
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
    """The contents of a file that does not exist yet. Ends with `discard`, however it went."""

    def __init__(self, store: "FileStore", path: Path, owner: str, room: "_Room | None") -> None:
        self.owner = owner
        self.id = path.name
        self.size = 0
        self._store = store
        self._path = path
        self._room = room
        self._descriptor: int | None = None
        self._parts: list[bytes] = []
        self._waiting = 0
        self._work: asyncio.Future[Any] | None = None
        self._placed = False

    async def write(self, data: bytes) -> None:
        """Append. Raises StorageLimitReached where what is being written would not fit, and StorageUnavailable."""
        self.size += len(data)
        if self._room is not None:
            incoming = self._store.incoming
            incoming[self.owner] += len(data)
            if incoming[self.owner] > self._room.own:
                raise own_full(self._store.limits, self.owner)
            if incoming.total() > self._room.whole:
                raise all_full(self._store.limits)
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= _WRITE_BYTES:
            await self._in_thread(self._flush)

    async def place(self, path: Path) -> None:
        """Have everything on the disk under its final name."""
        await self._in_thread(lambda: self._finish(path))
        self._placed = True
        self._forget()

    async def discard(self) -> None:
        """Remove what was written, unless the caller has had it placed."""
        self._forget()
        if self._work is None:
            return
        # A caller that was cancelled may have left it at work. If that fails, no other caller asks why.
        await asyncio.wait((self._work,))
        self._work.exception()
        # Closing can tell of a failure, too; what was written is to go all the same.
        with contextlib.suppress(OSError):
            self._close()
        if not self._placed:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._work = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(self._work)
        except OSError as error:
            raise self._store.condition.explain(error) from error

    def _flush(self) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _write_all(self._descriptor, b"".join(self._parts))
        self._parts, self._waiting = [], 0

    def _finish(self, path: Path) -> None:
        self._flush()
        assert self._descriptor is not None, "it has been opened"
        os.fsync(self._descriptor)
        self._path.rename(path)
        self._path = path
        self._close()
        sync_folder(path.parent)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _forget(self) -> None:
        if self._room is not None:
            self._store.incoming[self.owner] -= self.size
        self.size = 0


class FileStore:
    """All files of a server. `condition` is told of what the disk fails."""

    def __init__(
        self, database: Database, directory: DataDirectory, limits: StorageQuota, condition: StorageCondition
    ) -> None:
        self.limits = limits
        self.condition = condition
        # Bytes of each owner that are being written.
        self.incoming: Counter[str] = Counter()
        self._database = database
        self._contents = directory.folder("files")
        self._partial = directory.folder("incoming")

    def clean(self) -> None:
        """Remove what a server that was cut off has left; before anything else is asked."""
        known = self._database.run_at_start(_all_ids)
        try:
            present = {path.name for path in self._contents.iterdir()}
            left = [*self._partial.iterdir(), *(self._contents / name for name in present - known)]
            for path in left:
                path.unlink()
        except OSError as error:
            raise self.condition.explain(error) from error
        lost = known - present
        if lost:
            logger.warning("The contents of %d files have gone from the data directory; they are forgotten.", len(lost))
            # Where the disk is full, the next start can do it.
            with contextlib.suppress(StorageUnavailable):
                self._database.run_at_start(lambda connection: _delete_rows(connection, lost))

    async def probe(self) -> None:
        """Write a file and remove it. Raises StorageFull, StorageFailed where that fails."""
        try:
            await asyncio.to_thread(self._try_to_write)
        except OSError as error:
            raise self.condition.explain(error) from error

    def _try_to_write(self) -> None:
        # What little there is, is for clients: a probe that took it for a moment would fail them.
        if shutil.disk_usage(self._partial).free < _PROBE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path = self._partial / "probe"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, bytes(_PROBE_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            path.unlink()

    async def begin(self, owner: str, *, counted: bool = False) -> Incoming:
        """Begin a file; one of results was counted before, and has its room.

        Raises StorageLimitReached where the owner has no room for a file, StorageFull where the server has none.
        """
        path = self._partial / f"file-{uuid.uuid4().hex}"
        if counted:
            return Incoming(self, path, owner, None)
        await self.remove_expired()
        room = await self._database.run(lambda connection: self._room(connection, owner))
        return Incoming(self, path, owner, room)

    async def add(self, incoming: Incoming, purpose: str, filename: str, seconds: int | None = None) -> StoredFile:
        """Keep what was written, for `seconds`. Raises StorageLimitReached, StorageFull."""
        file = await self.place(incoming, purpose, filename, seconds)

        def work(connection: sqlite3.Connection) -> None:
            room = self._room(connection, file.owner)
            if file.bytes > room.own:
                raise own_full(self.limits, file.owner)
            if file.bytes > room.whole:
                raise all_full(self.limits)
            insert(connection, file)

        inserted = asyncio.ensure_future(self._database.run(work))
        try:
            await asyncio.shield(inserted)
        except BaseException:
            # A caller that was cancelled may have left it at work.
            await asyncio.wait((inserted,))
            if inserted.exception() is not None:
                # What cannot be removed either is at the next start.
                with contextlib.suppress(StorageUnavailable):
                    await self.remove_contents({file.id})
            raise
        return file

    async def place(self, incoming: Incoming, purpose: str, filename: str, seconds: int | None) -> StoredFile:
        """Keep the contents; the file exists once the caller has inserted it."""
        now, size, owner = int(time.time()), incoming.size, incoming.owner
        kept = self.limits.seconds_kept if seconds is None else seconds
        await incoming.place(self._contents / incoming.id)
        return StoredFile(incoming.id, purpose, filename, size, now, now + kept, owner)

    async def get(self, file_id: str, owner: str) -> StoredFile:
        """A stored file of this owner. Raises StoredFileNotFound."""
        return await self._database.run(lambda connection: find(connection, file_id, owner))

    async def page(self, owner: str, page: PageRequest, purpose: str | None) -> tuple[list[StoredFile], bool]:
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
        except OSError as error:
            raise self.condition.explain(error) from error

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises StoredFileNotFound, and StoredFileInUse where a batch still reads it."""
        await self._remove(lambda connection: _unused(connection, file_id, owner))

    async def remove_expired(self) -> None:
        """Delete files that are too old and that no batch still reads."""
        now = int(time.time())
        await self._remove(lambda connection: _expired(connection, now))

    async def _remove(self, choose: Callable[[sqlite3.Connection], set[str]]) -> None:
        """Delete the files with these ids: their rows first, and then what no row knows."""

        def work(connection: sqlite3.Connection) -> set[str]:
            ids = choose(connection)
            _delete_rows(connection, ids)
            return ids

        try:
            removed = await self._database.run(work)
        except StorageFull:
            # The database needs room to forget something: what the contents leave.
            await self.remove_contents(await self._database.run(choose))
            removed = await self._database.run(work)
        await self.remove_contents(removed)

    def _room(self, connection: sqlite3.Connection, owner: str) -> "_Room":
        """What there is. Raises StorageLimitReached, StorageFull where there is none."""
        own = self.limits.of(owner)
        (mine,) = connection.execute("SELECT count(*) FROM files WHERE owner = ?", (owner,)).fetchone()
        if mine >= own.files:
            raise StorageLimitReached(
                f"{_keeper(owner)} at most {own.files} files; delete some that are not needed with DELETE "
                "/v1/files/{id}."
            )
        check_room(connection, self.limits, owner)
        (count,) = connection.execute("SELECT count(*) FROM files").fetchone()
        if count >= self.limits.files:
            raise StorageFull(
                f"The server keeps at most {self.limits.files} files of all its users; delete some that are not needed "
                "with DELETE /v1/files/{id}, or try again later."
            )
        return _Room(own.bytes - used_bytes(connection, owner), self.limits.total_bytes - used_bytes(connection))

    async def remove_contents(self, ids: set[str]) -> None:
        """Remove the contents of files that do not exist (any more). Raises StorageFailed."""

        def work() -> None:
            for name in ids:
                (self._contents / name).unlink(missing_ok=True)

        if ids:
            try:
                await asyncio.to_thread(work)
            except OSError as error:
                raise self.condition.explain(error) from error


class _Room(msgspec.Struct, frozen=True):
    """Bytes that one tenant may still write, and all together."""

    own: int
    whole: int


def _keeper(owner: str) -> str:
    return "This API key may keep" if owner else "This server keeps"


def own_full(limits: StorageQuota, owner: str) -> StorageLimitReached:
    """The error where a tenant has no room for more bytes."""
    return StorageLimitReached(
        f"{_keeper(owner)} at most {limits.of(owner).bytes} bytes of files and results; delete files that are not "
        "needed with DELETE /v1/files/{id}."
    )


def all_full(limits: StorageQuota) -> StorageFull:
    """The error where the server has no room for more bytes of any tenant."""
    return StorageFull(
        f"The server keeps at most {limits.total_bytes} bytes of files and results of all its users; delete files that "
        "are not needed with DELETE /v1/files/{id}, or try again later."
    )


def check_room(connection: sqlite3.Connection, limits: StorageQuota, owner: str) -> None:
    """Raise StorageLimitReached where the tenant has no room for a byte more, StorageFull where the server has none."""
    if used_bytes(connection, owner) >= limits.of(owner).bytes:
        raise own_full(limits, owner)
    if used_bytes(connection) >= limits.total_bytes:
        raise all_full(limits)


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


def _write_all(descriptor: int, data: bytes) -> None:
    """A disk that fills up takes a part of what it is given, and says why only when asked for more."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _all_ids(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT id FROM files")}


def _delete_rows(connection: sqlite3.Connection, ids: set[str]) -> None:
    connection.executemany("DELETE FROM files WHERE id = ?", [(name,) for name in ids])


def _unused(connection: sqlite3.Connection, file_id: str, owner: str) -> set[str]:
    find(connection, file_id, owner)
    query = f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {_UNFINISHED}"
    reader = connection.execute(query, (file_id,)).fetchone()
    if reader is not None:
        raise StoredFileInUse(
            f"The file {file_id!r} is the input of {reader[0]!r}, which has not ended; cancel it first."
        )
    return {file_id}


def _expired(connection: sqlite3.Connection, now: int) -> set[str]:
    query = (
        "SELECT id FROM files WHERE expires_at <= ? AND id NOT IN "
        f"(SELECT input_file_id FROM batches WHERE status IN {_UNFINISHED})"
    )
    return {name for (name,) in connection.execute(query, (now,))}


def used_bytes(connection: sqlite3.Connection, owner: str | None = None) -> int:
    """Of all files and results, or of those of one tenant."""
    whose, values = ("", ()) if owner is None else ("WHERE owner = ?", (owner, owner))
    query = (
        f"SELECT (SELECT coalesce(sum(bytes), 0) FROM files {whose}) + "
        f"(SELECT coalesce(sum(result_bytes), 0) FROM batches {whose})"
    )
    (used,) = connection.execute(query, values).fetchone()
    return int(used)
