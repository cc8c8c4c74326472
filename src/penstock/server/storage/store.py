"""All that one server keeps."""

from pathlib import Path

from penstock.server.storage.batches import BatchStore
from penstock.server.storage.database import Database
from penstock.server.storage.directory import DataDirectory
from penstock.server.storage.files import FileStore
from penstock.server.storage.limits import Limits
from penstock.server.storage.tables import MIGRATIONS


class Store:
    """A server's data directory and what is in it, until `close`."""

    def __init__(self, directory: DataDirectory, database: Database, limits: Limits) -> None:
        self.directory = directory
        self.files = FileStore(database, directory, limits)
        self.batches = BatchStore(database, limits)
        self._database = database

    @classmethod
    def open(cls, path: Path, limits: Limits | None = None) -> "Store":
        """Take the directory and remove what a server that was cut off has left. Raises ConfigurationError."""
        directory = DataDirectory.open(path)
        try:
            database = Database.open(directory.path / "files.sqlite", MIGRATIONS)
        except BaseException:
            directory.close()
            raise
        store = cls(directory, database, limits or Limits())
        try:
            store.files.clean()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """End what is being written, and let another server have the directory."""
        self._database.close()
        self.directory.close()
