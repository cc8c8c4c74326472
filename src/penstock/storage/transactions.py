"""The one thread that uses a database for what is kept, so that the event loop never waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, update
from sqlalchemy.exc import DBAPIError

from penstock.database.connection import Database
from penstock.database.errors import DatabaseUnavailable
from penstock.database.tables import state
from penstock.storage.condition import StorageCondition

Answer = TypeVar("Answer")
Work = Callable[[Connection], Answer]


class Transactions:
    """Runs functions as transactions, one after another, on a thread of its own, until `close`.

    `condition` is told of what fails.
    """

    def __init__(self, database: Database, condition: StorageCondition, name: str) -> None:
        self.database = database
        self._condition = condition
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def run(self, work: Work[Answer]) -> Awaitable[Answer]:
        """The answer of `work`, all of whose changes are on the disk by then, or none where it raises.

        Transactions are run in the order of the calls. Where the caller is cancelled, `work` may be done or not.
        Raises StorageFull, StorageFailed.
        """
        return asyncio.get_running_loop().run_in_executor(self._thread, self._transaction, work)

    def wait(self, work: Work[Answer]) -> Answer:
        """The same for a thread that may wait."""
        return self._thread.submit(self._transaction, work).result()

    def _transaction(self, work: Work[Answer]) -> Answer:
        # A server that does not answer is asked by `probe` alone: none waits in turn for what says nothing.
        self._condition.check_reached()
        return self._try(work)

    def _try(self, work: Work[Answer]) -> Answer:
        try:
            with self.database.begin() as connection:
                return work(connection)
        except (DBAPIError, DatabaseUnavailable) as error:
            raise self._condition.explain_database(error) from error

    async def probe(self) -> None:
        """Write something that changes nothing. Raises StorageFull, StorageFailed where that fails."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._try, _write)

    def close(self) -> None:
        """End what runs, and the thread."""
        self._thread.shutdown()


def _write(connection: Connection) -> None:
    connection.execute(update(state).where(state.c.name == "store").values(value=state.c.value))
