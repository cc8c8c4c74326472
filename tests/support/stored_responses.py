"""A store of responses by itself, over a file of SQLite."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.storage import former
from penstock.storage.condition import StorageCondition
from penstock.storage.responses import ResponseQuota, ResponseStore
from penstock.storage.transactions import Transactions


@contextlib.contextmanager
def response_store(
    path: Path, limits: ResponseQuota | None = None, clock: Callable[[], float] = time.time
) -> Iterator[ResponseStore]:
    """That in the file at `path`, which is made where there is none."""
    condition = StorageCondition()
    with (
        contextlib.closing(former.open_file(path, former.RESPONSES)) as database,
        contextlib.closing(Transactions(database, condition, "responses")) as transactions,
        contextlib.closing(ResponseStore(transactions, limits, clock, condition)) as store,
    ):
        yield store
