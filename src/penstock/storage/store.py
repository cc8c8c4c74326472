"""All that one server keeps."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from penstock.access.tenants import Tenant
from penstock.storage.batches import BatchStore
from penstock.storage.condition import StorageCondition
from penstock.storage.database import Database
from penstock.storage.directory import DataDirectory
from penstock.storage.files import FileStore
from penstock.storage.quotas import StorageQuota, share_of
from penstock.storage.responses import ResponseQuota, ResponseStore
from penstock.storage.tables import MIGRATIONS


class Store:
    """A server's data directory and what is in it, until `close`; `condition` says whether it can be used now."""

    def __init__(
        self,
        directory: DataDirectory,
        database: Database,
        responses: ResponseStore,
        limits: StorageQuota,
        condition: StorageCondition,
    ) -> None:
        self.directory = directory
        self.condition = condition
        self.files = FileStore(database, directory, limits, condition)
        self.batches = BatchStore(database, limits)
        self.responses = responses
        self._database = database
        self._opened = contextlib.ExitStack()

    @classmethod
    def open(
        cls,
        path: Path,
        limits: StorageQuota | None = None,
        condition: StorageCondition | None = None,
        tenants: Sequence[Tenant] = (),
    ) -> "Store":
        """Take the directory and remove what a server that was cut off has left. `tenants` share what is kept.

        Raises ConfigurationError, and StorageFull or StorageFailed where the disk fails.
        """
        condition, share = condition or StorageCondition(), share_of(tenants)
        own = {each.name: each.max_stored_bytes for each in tenants if each.max_stored_bytes is not None}
        limits = replace(limits or StorageQuota(), tenant_share=share, tenant_bytes=own)
        kept = ResponseQuota(tenant_share=share, tenant_bytes=own)
        with contextlib.ExitStack() as opened:
            directory = DataDirectory.open(path)
            opened.callback(directory.close)
            database = Database.open(directory.path / "files.sqlite", MIGRATIONS, condition)
            opened.callback(database.close)
            responses = ResponseStore.open(directory.path / "responses.sqlite", kept, condition=condition)
            opened.callback(responses.close)
            store = cls(directory, database, responses, limits, condition)
            store.files.clean()
            store._opened = opened.pop_all()
        return store

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, a disk that has failed is looked at until it works again."""
        async with self.condition.watched(self._probe):
            yield

    async def _probe(self) -> None:
        await self.files.probe()
        await self._database.probe()
        await self.responses.probe()

    def close(self) -> None:
        """End what is being written, and let another server have the directory."""
        self._opened.close()
