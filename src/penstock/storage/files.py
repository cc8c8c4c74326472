"""Files: rows in the database, contents beside it. A file is there completely or not at all, and for its owner only.

Contents are complete before a row says that they exist.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import Column, Connection, Table, bindparam, delete, func, insert, select

from penstock.database.connection import alone
from penstock.database.tables import batches, file_parts, files
from penstock.storage.condition import StorageCondition
from penstock.storage.contents import Contents, Writing, exists_now
from penstock.storage.errors import (
    StorageFull,
    StorageLimitReached,
    StorageUnavailable,
    StoredFileInUse,
    StoredFileNotFound,
)
from penstock.storage.pagination import PageRequest, select_page
from penstock.storage.quotas import StorageQuota
from penstock.storage.transactions import Transactions

logger = logging.getLogger("penstock.server")

# Of contents that are written at a time; in a database, a row of them.
_WRITE_BYTES = 1 << 20
_UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")


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


_COLUMNS = [files.c[name] for name in StoredFile.__struct_fields__]


class Incoming:
    """The contents of a file that does not exist yet. Ends with `discard`, however it went."""

    def __init__(self, store: "FileStore", writing: Writing, file_id: str, owner: str, room: "_Room | None") -> None:
        self.owner = owner
        self.id = file_id
        self.size = 0
        self._store = store
        self._writing = writing
        self._room = room
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

    async def place(self) -> None:
        """Have everything on the disk, where it is found."""
        await self._in_thread(self._finish)
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
        if not self._placed:
            # What cannot be removed now, a later start can.
            with contextlib.suppress(OSError, StorageUnavailable):
                await asyncio.to_thread(self._writing.discard)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._work = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(self._work)
        except OSError as error:
            raise self._store.condition.explain(error) from error

    def _flush(self) -> None:
        self._writing.write(b"".join(self._parts))
        self._parts, self._waiting = [], 0

    def _finish(self) -> None:
        self._flush()
        self._writing.place()

    def _forget(self) -> None:
        if self._room is not None:
            self._store.incoming[self.owner] -= self.size
        self.size = 0


class FileStore:
    """All files of a server. `condition` is told of what the disk fails."""

    def __init__(
        self, database: Transactions, contents: Contents, limits: StorageQuota, condition: StorageCondition
    ) -> None:
        self.limits = limits
        self.condition = condition
        # Bytes of each owner that are being written.
        self.incoming: Counter[str] = Counter()
        self._database = database
        self._contents = contents

    def clean(self) -> None:
        """Remove what a server that was cut off has left; before anything else is asked."""
        known = self._database.wait(lambda connection: set(connection.scalars(select(files.c.id))))
        try:
            lost = self._contents.clean(known)
        except OSError as error:
            raise self.condition.explain(error) from error
        if lost:
            logger.warning("The contents of %d files have gone from the data directory; they are forgotten.", len(lost))
            # Where the disk is full, the next start can do it.
            with contextlib.suppress(StorageUnavailable):
                self._database.wait(lambda connection: _delete_rows(connection, lost))

    async def tidy(self) -> None:
        """Remove files that have expired, and uploads that have been left."""
        await self.remove_expired()
        await asyncio.to_thread(self._contents.give_up)

    async def probe(self) -> None:
        """Write a file and remove it. Raises StorageFull, StorageFailed where that fails."""
        try:
            await asyncio.to_thread(self._contents.probe)
        except OSError as error:
            raise self.condition.explain(error) from error

    async def begin(self, owner: str, *, counted: bool = False) -> Incoming:
        """Begin a file; one of results was counted before, and has its room.

        Raises StorageLimitReached where the owner has no room for a file, StorageFull where the server has none.
        """
        file_id, room = f"file-{uuid.uuid4().hex}", None
        if not counted:
            await self.remove_expired()
            room = await self._database.run(lambda connection: self._room(connection, owner))
        return Incoming(self, self._contents.begin(file_id), file_id, owner, room)

    async def add(self, incoming: Incoming, purpose: str, filename: str, seconds: int | None = None) -> StoredFile:
        """Keep what was written, for `seconds`. Raises StorageLimitReached, StorageFull."""
        file = await self.place(incoming, purpose, filename, seconds)

        def work(connection: Connection) -> None:
            alone(connection, "files")
            room = self._room(connection, file.owner)
            if file.bytes > room.own:
                raise own_full(self.limits, file.owner)
            if file.bytes > room.whole:
                raise all_full(self.limits)
            insert_file(connection, file)

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
        await incoming.place()
        return StoredFile(incoming.id, purpose, filename, size, now, now + kept, owner)

    async def get(self, file_id: str, owner: str) -> StoredFile:
        """A stored file of this owner. Raises StoredFileNotFound."""
        return await self._database.run(lambda connection: find_file(connection, file_id, owner))

    async def page(self, owner: str, page: PageRequest, purpose: str | None) -> tuple[list[StoredFile], bool]:
        """Some of the owner's files, and whether more follow. Raises StoredFileNotFound where there is no `after`."""
        found = await self._database.run(
            lambda connection: select_page(connection, files, _COLUMNS, owner, page, purpose)
        )
        if found is None:
            raise not_found(page.after or "", "after")
        rows, more = found
        return [StoredFile(*row) for row in rows], more

    async def open(self, file_id: str, owner: str) -> tuple[StoredFile, BinaryIO]:
        """A file and its contents. Raises StoredFileNotFound."""
        file = await self.get(file_id, owner)
        opened = asyncio.get_running_loop().run_in_executor(None, self._contents.open, file.id, file.bytes)
        try:
            return file, await asyncio.shield(opened)
        except asyncio.CancelledError:
            # The thread opens it all the same.
            opened.add_done_callback(_close)
            raise
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

    async def _remove(self, choose: Callable[[Connection], set[str]]) -> None:
        """Delete the files with these ids: their rows first, and then what no row knows."""

        def work(connection: Connection) -> set[str]:
            alone(connection, "files")
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

    def _room(self, connection: Connection, owner: str) -> "_Room":
        """What there is. Raises StorageLimitReached, StorageFull where there is none."""
        own = self.limits.of(owner)
        mine = connection.execute(select(func.count()).where(files.c.owner == owner)).scalar_one()
        if mine >= own.files:
            raise StorageLimitReached(
                f"{_keeper(owner)} at most {own.files} files; delete some that are not needed with DELETE "
                "/v1/files/{id}."
            )
        check_room(connection, self.limits, owner)
        count = connection.execute(select(func.count()).select_from(files)).scalar_one()
        if count >= self.limits.files:
            raise StorageFull(
                f"The server keeps at most {self.limits.files} files of all its users; delete some that are not needed "
                "with DELETE /v1/files/{id}, or try again later."
            )
        return _Room(own.bytes - used_bytes(connection, owner), self.limits.total_bytes - used_bytes(connection))

    async def remove_contents(self, ids: Collection[str]) -> None:
        """Remove the contents of files that do not exist (any more). Raises StorageFailed."""
        if ids:
            try:
                await asyncio.to_thread(self._contents.remove, ids)
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


def check_room(connection: Connection, limits: StorageQuota, owner: str) -> None:
    """Raise StorageLimitReached where the tenant has no room for a byte more, StorageFull where the server has none."""
    if used_bytes(connection, owner) >= limits.of(owner).bytes:
        raise own_full(limits, owner)
    if used_bytes(connection) >= limits.total_bytes:
        raise all_full(limits)


def insert_file(connection: Connection, file: StoredFile) -> None:
    """Make a placed file exist."""
    connection.execute(insert(files).values(msgspec.structs.asdict(file)))
    exists_now(connection, file.id)


def find_file(connection: Connection, file_id: str, owner: str, param: str | None = None) -> StoredFile:
    """The owner's file with this id. Raises StoredFileNotFound, which names `param`."""
    row = connection.execute(select(*_COLUMNS).where(files.c.id == file_id, files.c.owner == owner)).one_or_none()
    if row is None:
        raise not_found(file_id, param)
    return StoredFile(*row)


def not_found(file_id: str, param: str | None = None) -> StoredFileNotFound:
    """The error for an id that no file has."""
    return StoredFileNotFound(f"There is no file {file_id[:80]!r}; it may have been deleted, or expired.", param=param)


def _delete_rows(connection: Connection, ids: set[str]) -> None:
    for each in ids:
        connection.execute(delete(files).where(files.c.id == each))
        connection.execute(delete(file_parts).where(file_parts.c.file == each))


def _unused(connection: Connection, file_id: str, owner: str) -> set[str]:
    find_file(connection, file_id, owner)
    reads = select(batches.c.id).where(batches.c.input_file_id == file_id, batches.c.status.in_(_UNFINISHED))
    reader = connection.execute(reads).scalars().first()
    if reader is not None:
        raise StoredFileInUse(f"The file {file_id!r} is the input of {reader!r}, which has not ended; cancel it first.")
    return {file_id}


def _expired(connection: Connection, now: int) -> set[str]:
    read = select(batches.c.input_file_id).where(batches.c.status.in_(_UNFINISHED))
    return set(connection.scalars(select(files.c.id).where(files.c.expires_at <= now, files.c.id.not_in(read))))


def used_bytes(connection: Connection, owner: str | None = None) -> int:
    """Of all files and results, or of those of one tenant."""
    query, values = (_USED, {}) if owner is None else (_USED_BY_OWNER, {"owner": owner})
    return int(connection.execute(query, values).scalar_one())


def _used(*, of_one: bool) -> Any:
    def total(table: Table, size: Column[int]) -> Any:
        whose = (table.c.owner == bindparam("owner"),) if of_one else ()
        return select(func.coalesce(func.sum(size), 0)).where(*whose).scalar_subquery()

    return select(total(files, files.c.bytes) + total(batches, batches.c.result_bytes))


# Made once, since it takes longer to make a statement than to run it.
_USED, _USED_BY_OWNER = _used(of_one=False), _used(of_one=True)


def _close(opened: asyncio.Future[BinaryIO]) -> None:
    """Close what no caller gets any more."""
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
