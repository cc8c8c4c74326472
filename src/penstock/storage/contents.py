"""Where the contents of files are: in a folder of one server, or beside the rows of a database that several have.

Everything here may wait for a disk, and so is called by threads.
"""

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from sqlalchemy import Connection, delete, insert, select, update

from penstock.database.connection import clock
from penstock.database.tables import file_parts, incoming
from penstock.storage.directory import DataDirectory, sync_folder
from penstock.storage.transactions import Transactions

# What a look at a disk that was full wants to find free.
_PROBE_BYTES = 1 << 20
# What is longer in coming than this since its last part, its writer has left.
_PART_SECONDS = 3600.0


class Writing(Protocol):
    """The contents of one file while they come, piece by piece."""

    def write(self, data: bytes) -> None:
        """Append to what has come before."""

    def place(self) -> None:
        """Have everything on the disk, where it is found by its id."""

    def discard(self) -> None:
        """Remove what was written. It may have been placed."""


class Contents(Protocol):
    """The contents of files, by the files' ids. Raises OSError, or StorageUnavailable."""

    def begin(self, file_id: str) -> Writing:
        """Contents of a file that does not exist yet."""

    def open(self, file_id: str, size: int) -> BinaryIO:
        """Contents that were placed, of that size in bytes. Raises FileNotFoundError."""

    def remove(self, ids: Collection[str]) -> None:
        """Remove contents that no file has (any more)."""

    def clean(self, known: Collection[str]) -> set[str]:
        """Remove what a server that was cut off has left; which of the files that are known have no contents."""

    def give_up(self) -> None:
        """Remove what no more has come of for long, since its server has ended."""

    def probe(self) -> None:
        """Write something and remove it."""


class FolderContents:
    """In a folder that one server has.

    Contents are written under another name, flushed to the disk and renamed, and only then does a row say that they
    exist. What is deleted stays readable for those who have it open.
    """

    def __init__(self, directory: DataDirectory) -> None:
        self._contents = directory.folder("files")
        self._partial = directory.folder("incoming")

    def begin(self, file_id: str) -> Writing:
        """Nothing is there before the first bytes are."""
        return _FolderWriting(self._partial / file_id, self._contents / file_id)

    def open(self, file_id: str, size: int) -> BinaryIO:
        """Contents that stay readable if they are removed. Raises FileNotFoundError."""
        return (self._contents / file_id).open("rb")

    def remove(self, ids: Collection[str]) -> None:
        """Remove those that are there, and ignore others."""
        for name in ids:
            (self._contents / name).unlink(missing_ok=True)

    def clean(self, known: Collection[str]) -> set[str]:
        """Remove what no row knows; what a row knows and is not there."""
        present = {path.name for path in self._contents.iterdir()}
        for path in (*self._partial.iterdir(), *(self._contents / name for name in present - set(known))):
            path.unlink()
        return set(known) - present

    def give_up(self) -> None:
        """What has been left goes at the next start: until then, all that comes is this server's."""

    def probe(self) -> None:
        """Raises OSError where there is little room."""
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


class _FolderWriting:
    def __init__(self, path: Path, final: Path) -> None:
        self._path, self._final = path, final
        self._descriptor: int | None = None

    def write(self, data: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _write_all(self._descriptor, data)

    def place(self) -> None:
        assert self._descriptor is not None, "it has been opened"
        os.fsync(self._descriptor)
        self._path.rename(self._final)
        self._path = self._final
        self._close()
        sync_folder(self._final.parent)

    def discard(self) -> None:
        # Closing can tell of a failure, too; what was written is to go all the same.
        with contextlib.suppress(OSError):
            self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class RowContents:
    """In rows beside those of the files, for all who use the database.

    Contents that come have a row in `incoming` until their file exists, or until no more has come for an hour. What is
    deleted while it is read ends there.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def begin(self, file_id: str) -> Writing:
        """Nothing is there before the first bytes are."""
        return _RowWriting(self, self._database, file_id)

    def open(self, file_id: str, size: int) -> BinaryIO:
        """What is read of it raises OSError where it was deleted meanwhile."""
        return cast(BinaryIO, io.BufferedReader(_Parts(self._database, file_id, size), _READ_BYTES))

    def remove(self, ids: Collection[str]) -> None:
        """Remove those that are there, and ignore others."""

        def work(connection: Connection) -> None:
            for each in ids:
                connection.execute(delete(file_parts).where(file_parts.c.file == each))
                connection.execute(delete(incoming).where(incoming.c.file == each))

        self._database.wait(work)

    def clean(self, known: Collection[str]) -> set[str]:
        """Remove what has not come to its end; files that are known have their contents."""
        self.give_up()
        return set()

    def give_up(self) -> None:
        """Remove what no more has come of for an hour."""

        def work(connection: Connection) -> None:
            left = select(incoming.c.file).where(incoming.c.until <= clock(connection))
            connection.execute(delete(file_parts).where(file_parts.c.file.in_(left)))
            connection.execute(delete(incoming).where(incoming.c.file.in_(left)))

        self._database.wait(work)

    def probe(self) -> None:
        """The database's own look says whether it can be written."""


_READ_BYTES = 1 << 16


class _RowWriting:
    def __init__(self, contents: RowContents, database: Transactions, file_id: str) -> None:
        self._contents, self._database, self._id = contents, database, file_id
        self._parts = 0

    def write(self, data: bytes) -> None:
        number = self._parts

        def work(connection: Connection) -> None:
            until = clock(connection) + _PART_SECONDS
            renewed = update(incoming).where(incoming.c.file == self._id).values(until=until)
            if number == 0:
                connection.execute(insert(incoming).values(file=self._id, until=until))
            elif not connection.execute(renewed).rowcount:
                raise OSError(errno.ETIMEDOUT, "the upload paused for too long")
            connection.execute(insert(file_parts).values(file=self._id, number=number, content=data))

        self._database.wait(work)
        self._parts += 1

    def place(self) -> None:
        """It is there; the transaction that makes the file exist takes it out of what comes."""

    def discard(self) -> None:
        self._contents.remove([self._id])


class _Parts(io.RawIOBase):
    """The parts of a file, one after another."""

    def __init__(self, database: Transactions, file_id: str, size: int) -> None:
        self._database, self._id, self._left = database, file_id, size
        self._number, self._rest = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest and self._left:
            number = self._number
            found = self._database.wait(lambda connection: _part(connection, self._id, number))
            if found is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._rest, self._number, self._left = memoryview(found), number + 1, self._left - len(found)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def exists_now(connection: Connection, file_id: str) -> None:
    """What has come is a file from here on."""
    connection.execute(delete(incoming).where(incoming.c.file == file_id))


def _part(connection: Connection, file_id: str, number: int) -> bytes | None:
    where = (file_parts.c.file == file_id, file_parts.c.number == number)
    return connection.execute(select(file_parts.c.content).where(*where)).scalar_one_or_none()


def _write_all(descriptor: int, data: bytes) -> None:
    """A disk that fills up takes a part of what it is given, and says why only when asked for more."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
