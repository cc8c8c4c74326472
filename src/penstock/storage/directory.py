"""The folder that a server keeps state in: where it is, who may read it, and that one server has it at a time."""

import contextlib
import fcntl
import hashlib
import os
import re
from pathlib import Path

from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError

OFF = "off"
_LOCK = "lock"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")


def choose_folder(asked: str | None, model: str) -> tuple[Path | None, Reason]:
    """The folder for a server of `model`, None where nothing is to be kept, and why.

    Raises ConfigurationError where `asked` can be no folder.
    """
    setting = "data dir"
    if asked == "":
        raise ConfigurationError("--data-dir is empty; it must be the path of a folder, or off.")
    if asked == OFF:
        return None, Reason(setting, OFF, "as asked: no files are kept, so there are no batches")
    if asked is not None:
        folder = Path(asked).expanduser().absolute()
        return folder, Reason(setting, str(folder), "as asked")
    folder = data_root() / _folder_name(model)
    why = "files and batches outlive the server there; each model has a folder, and one server at a time has it"
    return folder, Reason(setting, str(folder), why)


def data_root() -> Path:
    """Where PENSTOCK_DATA puts it, else XDG_DATA_HOME, else the user's own data."""
    own = os.environ.get("PENSTOCK_DATA")
    data = Path(own) if own else Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "penstock"
    return Path(os.path.expanduser(data)).absolute()


def _folder_name(model: str) -> str:
    """A model's name as that of one folder; where characters have to go, a hash keeps different names apart."""
    if _PLAIN_NAME.fullmatch(model):
        return model
    digest = hashlib.blake2b(model.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return re.sub(r"[^A-Za-z0-9_-]+", "-", model)[:60] + "-" + digest


class DataDirectory:
    """A folder that this process has, until `close` or its end. What is made in it only its owner may read."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> "DataDirectory":
        """Make the folder where there is none, and take it. Raises ConfigurationError with the cause."""
        try:
            if not path.is_dir():
                path.mkdir(mode=0o700, parents=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            # The kernel gives it up with the process, however that ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise ConfigurationError(
                f"The data directory {path} is in use by another server"
                + (f" (process {holder})" if holder.isdigit() else "")
                + "; stop it, or choose another --data-dir, or off."
            ) from error
        # The process id is information only; a full disk does not keep the server from having the directory.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        return cls(path, lock)

    def folder(self, name: str) -> Path:
        """A folder in it that only its owner may read, made where there is none. Raises ConfigurationError."""
        folder = self.path / name
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error
        return folder

    def close(self) -> None:
        """Let another server have it."""
        os.close(self._lock)


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The data directory {path} cannot be used ({error.strerror}); choose another with --data-dir, or off."
    )


def sync_folder(folder: Path) -> None:
    """Have the disk keep which names the folder has."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
