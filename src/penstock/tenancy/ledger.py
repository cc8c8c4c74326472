"""The ledger in the database. What a request has used is entered behind it, and stays in a journal until it is."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock.core.errors import PenstockError
from penstock.database.connection import Database
from penstock.database.tables import ledger
from penstock.tenancy.entries import Entry
from penstock.tenancy.journal import Journal

logger = logging.getLogger("penstock.gateway")

_FLUSH_SECONDS, _LONGEST_SECONDS = 0.5, 5.0
_AT_ONCE = 1000
# At the end, for what is left to get into the database.
_LAST_SECONDS = 5.0
_BILLION = 10**9


class DatabaseLedger:
    """Of one gateway.

    Attributes:
        waiting: entries that are not in the database yet.
    """

    def __init__(self, database: Database, journal: Journal, left: Sequence[Entry] = ()) -> None:
        self.waiting: list[Entry] = list(left)
        self._database, self._journal = database, journal
        self._away = False

    @classmethod
    def open(cls, database: Database, folder: Path) -> "DatabaseLedger":
        """With a journal in a folder, and what is left in that. Raises ConfigurationError."""
        journal, left = Journal.open(folder)
        return cls(database, journal, left)

    def add(self, entry: Entry) -> None:
        """Keep it, without waiting for that."""
        self.waiting.append(entry)
        self._journal.add(entry)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, entries get into the database; then what is left does, if it answers."""
        ended = asyncio.Event()
        task = asyncio.create_task(self._run(ended))
        try:
            yield
        finally:
            ended.set()
            await task
            self._journal.close()
            if self.waiting:
                logger.warning("%d entries of the ledger are in its journal, for the next start", len(self.waiting))

    async def _run(self, ended: asyncio.Event) -> None:
        seconds, last = _FLUSH_SECONDS, None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ended.wait()
            if ended.is_set() and last is None:
                last = time.monotonic() + _LAST_SECONDS
            try:
                flushed = await self.flush()
            except Exception:
                logger.exception("the ledger could not be written")
                flushed = False
            seconds = _FLUSH_SECONDS if flushed else min(2 * seconds, _LONGEST_SECONDS)
            if last is not None:
                if not self.waiting or time.monotonic() > last:
                    return
                await asyncio.sleep(_FLUSH_SECONDS)

    async def flush(self) -> bool:
        """Put what waits into the database; False where that does not answer."""
        while self.waiting:
            some = self.waiting[:_AT_ONCE]
            try:
                await asyncio.to_thread(self._enter, some)
            except PenstockError as error:
                if not self._away:
                    logger.error("The ledger waits for its database: %s", error.message)
                self._away = True
                return False
            if self._away:
                logger.warning("The ledger's database answers again; %d entries have waited.", len(self.waiting))
            self._away = False
            del self.waiting[: len(some)]
            self._journal.keep(self.waiting)
        return True

    def _enter(self, entries: Sequence[Entry]) -> None:
        """Put entries into the database, or aside where that will never take them."""
        try:
            enter(self._database, entries)
        except PenstockError:
            raise
        except Exception as error:
            if len(entries) > 1:
                for entry in entries:
                    self._enter([entry])
                return
            logger.exception("the database does not take an entry of the ledger")
            self._journal.refuse(entries[0], str(error))


def enter(database: Database, entries: Sequence[Entry]) -> None:
    """Put entries into the ledger, each once. Raises DatabaseUnavailable."""
    if not entries:
        return
    rows = [_row(entry) for entry in entries]
    with database.begin() as connection:
        kind: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
        connection.execute(kind.insert(ledger).on_conflict_do_nothing(), rows)


def spent(connection: Connection, days: str) -> dict[str, int]:
    """What keys, projects and organisations ("key/…") have cost on the days whose dates begin so, in trillionths."""
    found: dict[str, int] = {}
    for kind in ("organisation", "project", "key"):
        whose = getattr(ledger.c, kind)
        sums = select(whose, func.sum(ledger.c.cost // _BILLION), func.sum(ledger.c.cost % _BILLION))
        rows = connection.execute(sums.where(ledger.c.day.startswith(days, autoescape=True)).group_by(whose))
        found |= {f"{kind}/{name}": exact(high, low) for name, high, low in rows}
    return found


def exact(high: Any, low: Any) -> int:
    """A sum of costs, which may be longer than an integer of a database: of its billions, and of what is below."""
    return int(high or 0) * _BILLION + int(low or 0)


def day_of(at: float) -> str:
    """The date of a moment in UTC, such as 2026-01-31."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _row(entry: Entry) -> dict[str, Any]:
    used = entry.used
    fields = msgspec.structs.asdict(entry)
    del fields["used"]
    # No text in PostgreSQL has this character, which clients can put into the name of a model.
    texts = {name: text.replace("\0", "\ufffd") for name, text in fields.items() if isinstance(text, str)}
    return {**fields, **texts, **msgspec.structs.asdict(used), "day": day_of(entry.at)}
