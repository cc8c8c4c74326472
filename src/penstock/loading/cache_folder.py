"""The folder that keeps packed weights between starts: where it is, what is in it, and what makes room for more."""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# Files that are not of this form are left alone: the folder may be any that a user names.
SUFFIX = ".packed"
PARTIAL_SUFFIX = ".packed.partial"
_OURS = re.compile(r".+-[0-9a-f]{16}\.packed")
MOST_BYTES = 64 << 30
SHARE_KEPT_FREE = 0.1
# A file is written weight by weight; one that was not touched for this time belongs to a process that died.
ABANDONED_SECONDS = 600.0


class NoRoom(Exception):
    """A file cannot be kept: it, or the folder, would become too large."""


def default_folder() -> Path:
    """Where PENSTOCK_CACHE puts it, else XDG_CACHE_HOME, else the user's own cache."""
    own = os.environ.get("PENSTOCK_CACHE")
    cache = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "penstock"
    return Path(os.path.expanduser(cache)).absolute() / "packed"


def hardware_file() -> Path:
    """What `penstock calibrate` writes of this machine unless told otherwise."""
    return default_folder().parent / "hardware.json"


def packed_files(folder: Path) -> list[tuple[Path, int]]:
    """The folder's files of packed weights with their sizes; the one that was not used for longest is first."""
    found = [(state.st_mtime, file, state.st_size) for file, state in _files(folder) if _OURS.fullmatch(file.name)]
    return [(file, size) for _, file, size in sorted(found)]


def remove_abandoned(folder: Path) -> None:
    """Remove what a start that was cut off has left half written."""
    for file, state in _files(folder):
        if file.name.endswith(PARTIAL_SUFFIX) and time.time() - state.st_mtime > ABANDONED_SECONDS:
            with contextlib.suppress(OSError):
                file.unlink()


@contextlib.contextmanager
def written_whole(file: Path) -> Iterator[BinaryIO]:
    """A stream whose content becomes `file` at the end of the block, flushed to the disk.

    A process that opens the file finds a whole one or none. Where the block, or writing, fails, nothing is left behind.
    """
    # Only the user may read it: the checkpoint may be private too.
    descriptor, partial = tempfile.mkstemp(PARTIAL_SUFFIX, f"{file.name.removesuffix(SUFFIX)}.", file.parent)
    try:
        with open(descriptor, "w+b") as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
            os.replace(partial, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def mark_used(file: Path) -> None:
    """Note that `file` was used now, where the folder may be written."""
    with contextlib.suppress(OSError):
        os.utime(file)


def in_words(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def make_room(folder: Path, size: int) -> list[Path]:
    """Remove what was not used for longest until a file of `size` bytes fits; returns what was removed.

    All files together are at most MOST_BYTES, and a share of the disk stays free. Raises NoRoom where a file of this
    size cannot be kept, OSError where the folder cannot be read or written.
    """
    files = packed_files(folder)
    held = sum(each for _, each in files)
    if size > MOST_BYTES:
        raise NoRoom(f"they take {in_words(size)}, and at most {in_words(MOST_BYTES)} are kept")
    lacking = _lacking(folder, size)
    if lacking > held:
        raise NoRoom(f"they take {in_words(size)}, and {SHARE_KEPT_FREE:.0%} of the disk are left free")
    lacking = max(lacking, held + size - MOST_BYTES)
    removed = []
    # What another process has mapped keeps its place on the disk until that process ends.
    for file, each in files:
        if lacking <= 0:
            break
        file.unlink(missing_ok=True)
        lacking -= each
        removed.append(file)
    return removed


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for file in folder.iterdir():
            # Another process may rename or remove a file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                found.append((file, file.stat()))
    return found


def _lacking(folder: Path, size: int) -> int:
    """Bytes that would have to become free before `size` more may be taken."""
    disk = shutil.disk_usage(folder)
    return size + int(SHARE_KEPT_FREE * disk.total) - disk.free
