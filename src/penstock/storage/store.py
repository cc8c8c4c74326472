"""All that one server keeps, or several together."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec.structs import replace
from sqlalchemy import Connection, select

from penstock.access.tenants import Tenant
from penstock.core.errors import ConfigurationError
from penstock.database.connection import Database
from penstock.database.errors import DatabaseUnavailable
from penstock.database.tables import state
from penstock.storage import former
from penstock.storage.batches import LEASE_SECONDS, BatchStore, Lease
from penstock.storage.condition import StorageCondition
from penstock.storage.contents import Contents, FolderContents, RowContents
from penstock.storage.directory import DataDirectory
from penstock.storage.errors import StorageUnavailable
from penstock.storage.files import FileStore
from penstock.storage.quotas import StorageQuota, share_of
from penstock.storage.responses import ResponseQuota, ResponseStore
from penstock.storage.transactions import Transactions


class Store:
    """What a server keeps, until `close`; `condition` says whether it can be used now.

    Responses have a thread of their own, so that requests that go on from them wait for no file.

    Attributes:
        id: what is kept is the same at all servers whose stores have it; empty where no other server can.
    """

    def __init__(
        self,
        kept: Transactions,
        responses: Transactions,
        contents: Contents,
        limits: StorageQuota,
        condition: StorageCondition,
        lease: Lease | None = None,
    ) -> None:
        self.condition = condition
        self.files = FileStore(kept, contents, limits, condition)
        self.batches = BatchStore(kept, limits, lease)
        shares = ResponseQuota(tenant_share=limits.tenant_share, tenant_bytes=limits.tenant_bytes)
        self.responses = ResponseStore(responses, shares, condition=condition)
        self.id = f"{kept.wait(_id):x}" if self.batches.lease.is_shared else ""
        self._databases = (kept, responses)
        self._opened = contextlib.ExitStack()
        self.files.clean()

    @classmethod
    def open(
        cls,
        path: Path,
        limits: StorageQuota | None = None,
        condition: StorageCondition | None = None,
        tenants: Sequence[Tenant] = (),
    ) -> "Store":
        """Take a data directory, which no other server has meanwhile, with two files of SQLite and one for each file.

        What a server that was cut off has left is removed. `tenants` share what is kept.

        Raises ConfigurationError, and StorageFull or StorageFailed where the disk fails.
        """
        condition = condition or StorageCondition()
        with contextlib.ExitStack() as opened:
            directory = DataDirectory.open(path)
            opened.callback(directory.close)
            kept, responses = (
                _using(opened, former.open_file(directory.path / f"{name}.sqlite", versions), condition, name)
                for name, versions in (("files", former.FILES), ("responses", former.RESPONSES))
            )
            store = cls(kept, responses, FolderContents(directory), _shared(limits, tenants), condition)
            opened.callback(store.responses.close)
            store._opened = opened.pop_all()
        return store

    @classmethod
    def share(
        cls,
        url: str,
        runner: str,
        limits: StorageQuota | None = None,
        condition: StorageCondition | None = None,
        tenants: Sequence[Tenant] = (),
    ) -> "Store":
        """What is kept in a database, which other servers may have meanwhile, too; its tables are made where needed.

        Batches that are made with a `runner` are run by servers with the same one, each by one at a time.

        Raises ConfigurationError, also where the database does not answer.
        """
        condition = condition or StorageCondition()
        lease = Lease(uuid.uuid4().hex, runner, LEASE_SECONDS)
        with contextlib.ExitStack() as opened:
            database = Database.open(url)
            opened.callback(database.close)
            kept, responses = (Transactions(database, condition, name) for name in ("files", "responses"))
            for each in (kept, responses):
                opened.callback(each.close)
            try:
                database.upgrade()
                store = cls(kept, responses, RowContents(kept), _shared(limits, tenants), condition, lease)
            except (DatabaseUnavailable, StorageUnavailable) as error:
                raise ConfigurationError(error.message) from None
            opened.callback(store.responses.close)
            store._opened = opened.pop_all()
        return store

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, a disk or database that has failed is looked at until it works again."""
        async with self.condition.watched(self._probe):
            yield

    async def _probe(self) -> None:
        await self.files.probe()
        for each in self._databases:
            await each.probe()

    def close(self) -> None:
        """End what is being written, and let another server have the directory."""
        self._opened.close()


def _using(opened: contextlib.ExitStack, database: Database, condition: StorageCondition, name: str) -> Transactions:
    """What uses a database until the stack ends."""
    opened.callback(database.close)
    transactions = Transactions(database, condition, name)
    opened.callback(transactions.close)
    return transactions


def _shared(limits: StorageQuota | None, tenants: Sequence[Tenant]) -> StorageQuota:
    """The limits, with the shares of some tenants."""
    if not tenants:
        return limits or StorageQuota()
    own = {each.name: each.max_stored_bytes for each in tenants if each.max_stored_bytes is not None}
    return replace(limits or StorageQuota(), tenant_share=share_of(tenants), tenant_bytes=own)


def _id(connection: Connection) -> int:
    return int(connection.execute(select(state.c.value).where(state.c.name == "store")).scalar_one())
