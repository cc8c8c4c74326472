"""What a server with storage does: the endpoints of files and batches, and the batches themselves."""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.routing import Route

from penstock.batches.endpoints import BatchesApi
from penstock.batches.files import FilesApi
from penstock.batches.lines import Lines
from penstock.batches.runner import BatchRunner, LineCounts
from penstock.storage.store import Store

NO_STORE = "This server keeps no files, and so runs no batches: it was started with --data-dir off."


class StoredApi:
    """Routes, and what runs beside them. Without a store every route says why there is none."""

    def __init__(self, store: Store | None, why_none: str, lines: Lines, metrics: LineCounts) -> None:
        self._runner = None if store is None else BatchRunner(store, lines, metrics)
        self._files = FilesApi(store, why_none)
        self._batches = BatchesApi(store, why_none, lines.endpoints, self._runner)
        self._store = store

    def routes(self) -> list[Route]:
        """The routes of files and batches."""
        return [*self._files.routes(), *self._batches.routes()]

    def lifespan(self, app: Starlette) -> contextlib.AbstractAsyncContextManager[None]:
        """Runs batches while the application runs."""
        return self.running()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run batches while the block does."""
        if self._store is None or self._runner is None:
            yield
            return
        async with self._store.watched(), self._runner.running():
            yield
