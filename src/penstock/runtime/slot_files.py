"""Slots as files of a folder, which other processes and machines may have open too.

A file is named by its tenant's tag, the key of the prefix that its slot ends, and the group. It is written under
another name, flushed, and renamed, so that it is there as a whole or not at all.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from penstock.cache.shelf_room import Name, ShelfRoom
from penstock.runtime.slot_names import ABOUT, FILES, name_of, path_of

# Of a disk that others use too, so much is left to them.
_LEFT_FREE = 256 << 20
_PART_SECONDS = 600


class SlotFiles:
    """Files in a folder, at most `most_bytes` of them; `ShelfRoom` says which make room.

    What is wrong with the disk is an OSError.
    """

    failures: tuple[type[Exception], ...] = (OSError,)
    refusals: tuple[type[Exception], ...] = (FileNotFoundError, NotADirectoryError, PermissionError)

    def __init__(
        self, folder: Path, most_bytes: int, *, about: bytes = b"", private: bool = True, parallel: int = 1
    ) -> None:
        """The folder is made in the one that it is in, with a file that says what it is `about`.

        No other user can read what is `private`.
        """
        self.parallel = parallel
        self._folder, self._about = folder, about
        self._modes = (0o700, 0o600) if private else (0o777, 0o666)
        self._most = most_bytes
        self._lock = threading.Lock()
        self._room = ShelfRoom()

    def names(self) -> list[Name]:
        """Of all that are there. What others have written and removed counts from now on."""
        self._folder.mkdir(mode=self._modes[0], exist_ok=True)
        if self._about and not (self._folder / ABOUT).exists():
            (self._folder / ABOUT).write_bytes(self._about)
        found = sorted(_listed(self._folder), key=lambda each: each[1].st_mtime_ns)
        with self._lock:
            self._room.begin_with((name, status.st_size) for name, status in found)
            return list(self._room)

    @property
    def size(self) -> int:
        """What they take, all together."""
        return self._room.bytes

    def put(self, name: Name, value: bytes, weight: float = 1.0) -> list[Name]:
        """Write one, for which others may have to go. Raises OSError, and leaves nothing of it."""
        size = len(value)
        folder_mode, file_mode = self._modes
        self._folder.mkdir(mode=folder_mode, exist_ok=True)
        with self._lock:
            gone = self._make_room(name, size, weight)
        path = path_of(self._folder, name)
        path.parent.mkdir(mode=folder_mode, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.uname().nodename}.{os.getpid()}.{threading.get_ident()}.part")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, file_mode)
            with open(descriptor, "wb", buffering=0) as file:
                _write_all(file.fileno(), value)
                os.fsync(file.fileno())
            os.rename(beside, path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        with self._lock:
            self._room.add(name, size, weight)
        return gone

    def get(self, name: Name, most: int) -> bytes | None:
        """A value. Raises OSError where it is there and cannot be read."""
        path = path_of(self._folder, name)
        try:
            with open(path, "rb", buffering=0) as file:
                content = _read_all(file.fileno(), most + 1)
        except FileNotFoundError:
            with self._lock:
                self._room.remove(name)
            return None
        with self._lock:
            self._room.use(name)
        # Others who look at the folder, and a later start, see that it was used.
        with contextlib.suppress(OSError):
            os.utime(path)
        return content if len(content) <= most else None

    def _make_room(self, coming: Name, size: int, weight: float) -> list[Name]:
        """Remove files until there is room for `size` bytes more. Raises OSError where there is none even so."""
        gone = []
        free = shutil.disk_usage(self._folder).free
        while self._room.bytes + size > self._most or free < _LEFT_FREE + size:
            name = self._room.first_to_go(coming, size, weight)
            if name is None:
                break
            free += self._room.remove(name)
            gone.append(name)
            with contextlib.suppress(FileNotFoundError):
                path_of(self._folder, name).unlink()
        if self._room.bytes + size > self._most or free < _LEFT_FREE + size:
            raise OSError(f"there are {free} bytes free on the disk, and {_LEFT_FREE} are left to others")
        return gone


def _listed(folder: Path) -> Iterable[tuple[Name, os.stat_result]]:
    """What is there of complete files; what a process that was killed has left of others goes."""
    for path in folder.glob(FILES):
        if path.name.endswith(".part"):
            with contextlib.suppress(OSError):
                # Another process may be writing a younger one.
                if time.time() - path.stat().st_mtime > _PART_SECONDS:
                    path.unlink()
            continue
        if (name := name_of(path)) is not None:
            with contextlib.suppress(OSError):
                yield name, path.stat()


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _read_all(descriptor: int, most: int) -> bytes:
    """The rest of a file, up to `most` bytes."""
    pieces, left = [], most
    while left and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
