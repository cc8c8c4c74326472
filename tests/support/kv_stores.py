"""Stores of KV blocks that machines share, each a real one."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from support.mooncake import Mooncake
from support.object_store import ObjectStore
from support.shared_store import SharedStore

KINDS = ("folder", "valkey", "s3", "mooncake")


class KVStore(Protocol):
    """One that can go away.

    Attributes:
        url: as `--kv-store` takes it.
    """

    url: str

    def values(self) -> dict[str, bytes]:
        """All that it has of slots, by its names."""

    def put(self, name: str, value: bytes) -> None:
        """Spoil one."""

    def kill(self) -> None:
        """It is gone, with all that it had."""

    def start(self) -> None:
        """It is there again, with nothing."""


class Folder:
    """Files, as on a share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "share"
        self.url = f"file://{self._folder}"
        self.start()

    def values(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self._folder.glob("*/??/*.kv")}

    def put(self, name: str, value: bytes) -> None:
        Path(name).write_bytes(value)

    def kill(self) -> None:
        """A share whose machine is away: nothing in it can be reached."""
        self._folder.rename(self._folder.with_name("away"))
        self._folder.write_text("no folder")

    def start(self) -> None:
        if self._folder.is_file():
            self._folder.unlink()
        self._folder.mkdir()


class Valkey(SharedStore):
    """Values of a server."""

    def values(self) -> dict[str, bytes]:
        with self.client() as client:
            return {key.decode(): client.get(key) for key in client.scan_iter()}

    def put(self, name: str, value: bytes) -> None:
        with self.client() as client:
            client.set(name, value)

    def stop(self) -> None:
        """It answers nothing until it is killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)


class Objects(ObjectStore):
    """Objects of a server."""

    def values(self) -> dict[str, bytes]:
        client = self.client()
        paths = [each["path"] for some in client.list() for each in some]
        return {path: bytes(client.get(path).bytes()) for path in paths if not path.endswith("about.json")}

    def put(self, name: str, value: bytes) -> None:
        self.client().put(name, value)


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[KVStore]:
    """A new one, for as long as it is wanted."""
    store: Folder | Valkey | Objects | Mooncake
    if kind == "folder":
        yield Folder(folder)
        return
    store = {"valkey": Valkey, "s3": Objects, "mooncake": Mooncake}[kind](folder)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "id")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "key")
        try:
            yield store
        finally:
            store.close()
