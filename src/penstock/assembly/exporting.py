"""Copies of what a folder of --kv-disk has of a model: another folder, or a tar file, for other machines."""

import contextlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.assembly.disk import SECRET
from penstock.cache.keeps import Slot
from penstock.core.errors import ConfigurationError
from penstock.runtime.slot_files import put_file
from penstock.runtime.slot_names import ABOUT, path_of

TAR = ".tar"
_MODE, _FOLDER_MODE = 0o600, 0o700


class Exported(NamedTuple):
    """How many files were copied, their bytes, how many were there before, and how many had gone meanwhile."""

    files: int
    size: int
    there: int
    gone: int


class _Target(Protocol):
    def add(self, name: str, content: bytes, modified: float) -> bool:
        """Put a whole file there; False where it is there."""


def exported(own: Path, slots: Iterable[Slot], target: Path) -> Exported:
    """Copy slots of a part, each as a whole, with the times until when they are kept.

    Into a folder they go beside what is there. A tar file is there once it is complete. Raises ConfigurationError where
    the target cannot be written, or is something else.
    """
    try:
        with _tar(target) if target.suffix == TAR else _folder(target) as into:
            return _copied(own, slots, into)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error.strerror or error}.") from error


def _copied(own: Path, slots: Iterable[Slot], into: _Target) -> Exported:
    files = size = there = gone = 0
    for slot in slots:
        path = path_of(own, slot)
        try:
            # A file is there as a whole: it was renamed. It may be removed meanwhile, since a server makes room.
            with open(path, "rb") as file:
                content, modified = file.read(), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            gone += 1
            continue
        if into.add(str(path.relative_to(own.parent)), content, modified):
            files, size = files + 1, size + len(content)
        else:
            there += 1
    # Last, since it says that there is something.
    into.add(f"{own.name}/{ABOUT}", (own / ABOUT).read_bytes(), (own / ABOUT).stat().st_mtime)
    return Exported(files, size, there, gone)


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, name: str, content: bytes, modified: float) -> bool:
        path = self._folder / name
        if path.exists():
            return False
        for parent in (path.parent.parent, path.parent):
            parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        put_file(path, content, part=str(os.getpid()), mode=_MODE, time_of=lambda: modified)
        return True


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[_Folder]:
    folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    others = [entry.name for entry in os.scandir(folder)]
    if others and SECRET not in others and not any((folder / name / ABOUT).is_file() for name in others):
        raise ConfigurationError(f"{folder} has other files; give an empty folder, one of --kv-disk, or a {TAR} file.")
    yield _Folder(folder)


class _Tar:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def add(self, name: str, content: bytes, modified: float) -> bool:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime, entry.mode = len(content), int(modified) + (modified > int(modified)), _MODE
        self._tar.addfile(entry, io.BytesIO(content))
        return True


@contextlib.contextmanager
def _tar(path: Path) -> Iterator[_Tar]:
    if path.exists():
        raise ConfigurationError(f"{path} is there already; give another name, or remove it.")
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        with open(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                yield _Tar(tar)
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
