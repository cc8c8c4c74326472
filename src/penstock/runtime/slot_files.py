"""Slots as files: each is there whole, or not at all.

A file is named by the tag of its tenant, the group and the key of the prefix that its slot ends. It is written under
another name, flushed, and renamed. Its contents are encrypted and authenticated (AES-GCM, NIST SP 800-38D) together
with what they are of, with a key of its tenant: whatever is not as it was written, is another tenant's, or was written
by somebody without the secret, is not read.
"""

import contextlib
import os
import shutil
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag

from penstock.cache.shelf_room import Name, ShelfRoom, tag_in
from penstock.runtime.slot_names import FILES, name_of, path_of
from penstock.runtime.tenant_keys import TenantKeys

MAGIC = b"penstock slot 2\n"
# The magic, group, bytes of the slot, and the tenant's tag with the prefix's key.
_HEAD = struct.Struct("<16sIQ32s")
_NONCE_BYTES, _TAG_BYTES = 12, 16
# What a file has beside the slot.
BESIDE_BYTES = _HEAD.size + _NONCE_BYTES + _TAG_BYTES
# Of a disk that others use too, so much is left to them.
_LEFT_FREE = 256 << 20
_PART_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Sealed:
    """A file that is to be written, encrypted."""

    name: Name
    beginning: bytes
    rest: bytes

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return len(self.beginning) + len(self.rest)


class SlotFiles:
    """Files of slots in a folder, at most `most_bytes` of them; `ShelfRoom` says which make room.

    May be used on several threads. What is wrong with the disk is an OSError, what is wrong with a file a miss.
    """

    def __init__(self, folder: Path, secret: bytes, most_bytes: int) -> None:
        """`secret` has 16 bytes."""
        self._folder = folder
        self._keys = TenantKeys(secret)
        self._most = most_bytes
        self._lock = threading.Lock()
        self._room = ShelfRoom()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, size in sorted(_listed(folder), key=lambda each: each[1].st_mtime_ns):
            self._room.add(name, size.st_size)

    def names(self) -> list[Name]:
        """Of all that are there."""
        with self._lock:
            return list(self._room)

    @property
    def size(self) -> int:
        """What they take, all together."""
        return self._room.bytes

    def seal(self, name: Name, slot: bytes | memoryview) -> Sealed:
        """The contents of a file for a slot, which may change afterwards."""
        head, nonce = _head(name, len(slot)), os.urandom(_NONCE_BYTES)
        return Sealed(name, head + nonce, self._keys.cipher(tag_in(name)).encrypt(nonce, slot, head))

    def write(self, sealed: Sealed, weight: float = 1.0) -> list[Name]:
        """Write one of a tenant of this weight, for which others may have to go; returns these.

        Raises OSError, and leaves nothing of it.
        """
        name, size = sealed.name, sealed.size
        with self._lock:
            gone = self._make_room(name, size, weight)
        path = path_of(self._folder, name)
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                _write_all(file.fileno(), sealed.beginning)
                _write_all(file.fileno(), sealed.rest)
                os.fsync(file.fileno())
            os.rename(beside, path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        with self._lock:
            self._room.add(name, size, weight)
        return gone

    def read(self, name: Name, size: int) -> bytes | None:
        """The slot of `size` bytes; None where it is not there as it was written."""
        path = path_of(self._folder, name)
        try:
            with open(path, "rb", buffering=0) as file:
                content = memoryview(_read_all(file.fileno(), BESIDE_BYTES + size + 1))
            head, nonce = _head(name, size), content[_HEAD.size :][:_NONCE_BYTES]
            if len(content) != BESIDE_BYTES + size or content[: _HEAD.size] != head:
                raise InvalidTag
            slot = self._keys.cipher(tag_in(name)).decrypt(nonce, content[_HEAD.size + _NONCE_BYTES :], head)
        except (OSError, InvalidTag):
            # A file of another form is left to those who know it: it is not ours to remove.
            self._forget(name)
            return None
        with self._lock:
            self._room.use(name)
        # Others who look at the folder, and a later start, see that it was used.
        with contextlib.suppress(OSError):
            os.utime(path)
        return slot

    def _forget(self, name: Name) -> None:
        with self._lock:
            self._room.remove(name)

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


def _head(name: Name, size: int) -> bytes:
    group, key = name
    return _HEAD.pack(MAGIC, group, size, key)


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
