"""All that one server keeps."""

import contextlib
from pathlib import Path

from penstock.server.responses.store import ResponseStore
from penstock.server.storage.batches import BatchStore
from penstock.server.storage.database import Database
from penstock.server.storage.directory import DataDirectory
from penstock.server.storage.files import FileStore
from penstock.server.storage.limits import Limits
from penstock.server.storage.tables import MIGRATIONS


class Store:
    """A server's data directory and what is in it, until `close`."""

    def __init__(self, directory: DataDirectory, database: Database, responses: ResponseStore, limits: Limits) -> None:
        self.directory = directory
        self.files = FileStore(database, directory, limits)
        self.batches = BatchStore(database, limits)
        self.responses = responses
        self._opened = contextlib.ExitStack()

    @classmethod
    def open(cls, path: Path, limits: Limits | None = None) -> "Store":
        """Take the directory and remove what a server that was cut off has left. Raises ConfigurationError."""
        with contextlib.ExitStack() as opened:
            directory = DataDirectory.open(path)
            opened.callback(directory.close)
            database = Database.open(directory.path / "files.sqlite", MIGRATIONS)
            opened.callback(database.close)
            responses = ResponseStore.open(directory.path / "responses.sqlite")
            opened.callback(responses.close)
            store = cls(directory, database, responses, limits or Limits())
            store.files.clean()
            store._opened = opened.pop_all()
        return store

    def close(self) -> None:
        """End what is being written, and let another server have the directory."""
        self._opened.close()
