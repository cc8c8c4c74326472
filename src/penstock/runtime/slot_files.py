"""Slots as files of a folder, which other processes and machines may have open too.

A file is named by its tenant's tag, the key of the prefix that its slot ends, and the group. It is written under
another name, flushed, and renamed, so that it is there as a whole or not at all.

A file's time of modification says when it was used last, or until when it is kept, where that is later. So every
process that has the folder knows which files make room first, and a copy of the folder knows it too.
"""

import contextlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable
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
        self,
        folder: Path,
        most_bytes: int,
        *,
        about: bytes = b"",
        private: bool = True,
        parallel: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The folder is made in the one that it is in, with a file that says what it is `about`.

        No other user can read what is `private`. The clock gives Unix time.
        """
        self._clock = clock
        self.parallel = parallel
        self._folder, self._about = folder, about
        # Tells what this process is writing from what others are, which may be on other machines.
        self._own = secrets.token_hex(8)
        self._modes = (0o700, 0o600) if private else (0o777, 0o666)
        self._most = most_bytes
        self._lock = threading.Lock()
        self._room = ShelfRoom()

    def names(self) -> list[Name]:
        """Of all that are there. What others have written and removed counts from now on."""
        self._folder.mkdir(mode=self._modes[0], exist_ok=True)
        if self._about and not (self._folder / ABOUT).exists():
            (self._folder / ABOUT).write_bytes(self._about)
        found = dict(_listed(self._folder))
        with self._lock:
            # What is to be kept may not have its time yet.
            self._room.begin_with({name: (each.st_size, each.st_mtime) for name, each in found.items()})
            return list(self._room)

    def kept(self) -> dict[Name, float]:
        """Those that are kept, with the seconds that are left."""
        with self._lock:
            now = self._clock()
            return {name: at - now for name, at in self._room.kept(now).items()}

    def expect(self, name: Name, seconds: float) -> None:
        """One will be kept for so long: from now on it makes no room, if it is there."""
        with self._lock:
            self._room.use(name, max(self._room.time_of(name), self._clock() + seconds))

    def keep(self, name: Name, seconds: float) -> bool:
        """Keep one for so long at least: all others make room before; False where it is not there."""
        path = path_of(self._folder, name)
        try:
            until = max(self._clock() + seconds, path.stat().st_mtime)
            os.utime(path, (until, until))
        except FileNotFoundError:
            self._forget(name)
            return False
        with self._lock:
            self._room.use(name, until)
        return True

    def _forget(self, name: Name) -> None:
        with self._lock:
            self._room.remove(name)

    @property
    def size(self) -> int:
        """What they take, all together."""
        return self._room.bytes

    def put(self, name: Name, value: bytes | bytearray, weight: float = 0.0) -> list[Name]:
        """Write one, for which others may have to go. Raises OSError, and leaves nothing of it."""
        size = len(value)
        folder_mode, file_mode = self._modes
        self._folder.mkdir(mode=folder_mode, exist_ok=True)
        with self._lock:
            gone = self._make_room(name, size, weight)
        path = path_of(self._folder, name)
        path.parent.mkdir(mode=folder_mode, exist_ok=True)
        # What is there already may be kept.
        at = put_file(
            path,
            value,
            part=f"{self._own}.{threading.get_ident()}",
            mode=file_mode,
            time_of=lambda: max(self._clock(), self._room.time_of(name)),
        )
        with self._lock:
            self._room.add(name, size, at, weight)
        return gone

    def get(self, name: Name, most: int) -> bytes | None:
        """A value. Raises OSError where it is there and cannot be read."""
        path = path_of(self._folder, name)
        try:
            with open(path, "rb", buffering=0) as file:
                content = _read_all(file.fileno(), most + 1)
                at = max(self._clock(), os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            self._forget(name)
            return None
        with self._lock:
            self._room.use(name, at)
        # Others who look at the folder, and a later start, see that it was used.
        with contextlib.suppress(OSError):
            os.utime(path, (at, at))
        return content if len(content) <= most else None

    def ahead(self, name: Name) -> None:
        """Have the system read a file while others are used. Raises OSError where it is there and cannot be opened."""
        try:
            descriptor = os.open(path_of(self._folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)

    def _make_room(self, coming: Name, size: int, weight: float) -> list[Name]:
        """Remove files until there is room for `size` bytes more. Raises OSError where there is none even so."""
        gone = []
        free = shutil.disk_usage(self._folder).free
        while self._room.bytes + size > self._most or free < _LEFT_FREE + size:
            name = self._room.first_to_go(coming, size, weight, self._clock())
            if name is None:
                break
            with contextlib.suppress(OSError):
                # Another process may have used it since, or keep it.
                if (now := path_of(self._folder, name).stat().st_mtime) > self._room.time_of(name):
                    self._room.use(name, now)
                    continue
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


def put_file(path: Path, content: bytes | bytearray, *, part: str, mode: int, time_of: Callable[[], float]) -> float:
    """Write a file that is there as a whole or not at all, under another name with `part` in it until it is.

    It has the time that `time_of` says once it is written, which is returned. Raises OSError, and leaves nothing of it.
    """
    beside = path.with_name(f"{path.name}.{part}.part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb", buffering=0) as file:
            _write_all(file.fileno(), content)
            os.fsync(file.fileno())
        at = time_of()
        os.utime(beside, (at, at))
        os.rename(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return at


def _write_all(descriptor: int, content: bytes | bytearray) -> None:
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
