"""What a gateway does with a database of tenants: keys and budgets follow it, and no request waits for it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from penstock.access.allowances import Allowances
from penstock.core.errors import PenstockError
from penstock.database.connection import Database
from penstock.gateway.admin import AdminApi
from penstock.gateway.dispatch import Dispatch
from penstock.http.error_bodies import Dialects
from penstock.metering.meters import Meter
from penstock.tenancy.entries import Entry
from penstock.tenancy.errors import KeyRevoked
from penstock.tenancy.following import Following
from penstock.tenancy.ledger import DatabaseLedger, day_of, spent
from penstock.tenancy.records import Changes, SetSplit
from penstock.tenancy.registry import Registry

if TYPE_CHECKING:
    from penstock.tenancy.oidc import Issuer

logger = logging.getLogger("penstock.gateway")

# Between two comparisons of budgets with the ledger.
_COMPARED_SECONDS = 30.0


class Tenants:
    """Of one gateway, whose ledger it is.

    Attributes:
        registry: changes them, in the database.
        following: knows them, in memory.
        ledger: has what each request used.
    """

    def __init__(self, database: Database, journals: Path, issuer: "Issuer | None" = None) -> None:
        """Raises ConfigurationError where the journal of the ledger cannot be written."""
        self.registry = Registry(database)
        self.following = Following(self.registry, self._learned, issuer)
        self._issuer = issuer
        self.ledger = DatabaseLedger.open(database, journals)
        self._database = database
        self._dispatch: Dispatch | None = None
        self._splits: dict[str, SetSplit] = {}

    @property
    def away(self) -> str | None:
        """Why the database does not answer; None while it does."""
        return self.following.away

    @property
    def pending(self) -> int:
        """How many entries of the ledger the database does not have yet."""
        return len(self.ledger.waiting)

    def add(self, entry: Entry) -> None:
        """Keep an entry of the ledger, without waiting for that."""
        self.ledger.add(entry)

    def admin(self, dialects: Dialects) -> ASGIApp:
        """The application that answers administrators."""
        parts = (
            self._database,
            self.registry,
            self.following,
            dialects,
            self._metrics,
            self._allowances,
            self._told_splits,
        )
        return AdminApi(*parts).application()

    def _metrics(self) -> bytes:
        assert self._dispatch is not None, "nothing is asked before it is watched"
        return self._dispatch.text(tenants=True)

    def _told_splits(self) -> list[dict[str, object]]:
        assert self._dispatch is not None, "nothing is asked before it is watched"
        return self._dispatch.splits.told()

    def _allowances(self) -> Allowances:
        assert self._dispatch is not None, "nothing is asked before it is watched"
        return self._dispatch.limits.allowances

    @contextlib.asynccontextmanager
    async def watched(self, dispatch: Dispatch) -> AsyncIterator[None]:
        """While the block runs, the database is followed; then it is closed.

        Raises ConfigurationError where it does not answer.
        """
        self._dispatch = dispatch
        dispatch.limits.on_share = self._share_reached
        tokens = contextlib.nullcontext() if self._issuer is None else self._issuer.watched()
        try:
            async with self.ledger.watched(), self.following.watched(), tokens:
                task = asyncio.create_task(self._compare_budgets())
                try:
                    yield
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
        finally:
            await asyncio.to_thread(self._database.close)

    async def _learned(self, changes: Changes, ended: Sequence[str]) -> None:
        assert self._dispatch is not None, "nothing is learned before it is watched"
        for key in ended:
            error = KeyRevoked("The API key was revoked while this was answered.")
            if count := self._dispatch.under_way.end(key, error):
                logger.info("ended %d requests of the key %s, which was revoked", count, key)
        for name, split in changes.splits.items():
            if self._splits.get(name) != split:
                self._splits[name] = split
                self._dispatch.splits.set(name, split.percent)
        await self._count_spent(self._dispatch)

    def _share_reached(self, meter: Meter, share: float) -> None:
        used = "has no room for a request" if share == 1.0 else f"is used or reserved to {100 * share:g}%"
        logger.warning("The budget of %s for the %s %s.", meter.owner, meter.period, used)
        self.following.reached(meter.owner, meter.period, share)

    async def _compare_budgets(self) -> None:
        while True:
            await asyncio.sleep(_COMPARED_SECONDS)
            try:
                assert self._dispatch is not None
                await self._count_spent(self._dispatch)
            except PenstockError:
                # Who follows the database says that it does not answer.
                continue
            except Exception:
                logger.exception("budgets could not be compared with the ledger")

    async def _count_spent(self, dispatch: Dispatch) -> None:
        """Budgets count what the ledger has, whatever this gateway, or a store of limits, has lost of it."""
        budgets = list(self.following.directory.budgets())
        if not budgets:
            return
        today = day_of(time.time())
        day, month = await asyncio.to_thread(self._spent, today)
        for organisation, level in budgets:
            used = day.get(level.owner, 0), month.get(level.owner, 0)
            await dispatch.limits.count_spent(organisation, level, *used)

    def _spent(self, today: str) -> tuple[dict[str, int], dict[str, int]]:
        with self._database.begin() as connection:
            return spent(connection, today), spent(connection, today[: len("2026-01")])
