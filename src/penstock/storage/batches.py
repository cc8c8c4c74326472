"""Batches: how far each has come, and the results of its lines until they become files.

A line's result and the counts that include it are one transaction, so what a batch says of itself is true at any
moment, and a line that was counted is never computed again.

Of several servers with one database, one runs a batch: it holds it for a while, again and again. Where it does not any
more, another one takes the batch, and the first can change nothing of it.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, delete, func, insert, or_, select, true, update

from penstock.core.errors import InvalidParameter
from penstock.database.connection import alone, clock
from penstock.database.tables import batch_results as results_of
from penstock.database.tables import batches
from penstock.storage.errors import BatchHasEnded, BatchNotFound, BatchTaken, TooManyBatches
from penstock.storage.files import StoredFile, check_room, find_file, insert_file
from penstock.storage.pagination import PageRequest, select_page
from penstock.storage.quotas import StorageQuota
from penstock.storage.transactions import Transactions

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED = ("failed", "completed", "expired", "cancelled")
INPUT_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"
# For which one of several servers holds a batch, each time; one that has ended is noticed after so long.
LEASE_SECONDS = 10.0


class BatchProblem(msgspec.Struct, frozen=True):
    """Why a batch has failed; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch; times are in seconds since 1970, and None while what they tell has not happened.

    `owner` is the tenant whose batch it is; for all others there is none. `key` is the id of the key that it was made
    with, where keys have ids.
    """

    id: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    owner: str = ""
    key: str = ""
    status: BatchStatus = "validating"
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    problems: tuple[BatchProblem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


class LineResult(msgspec.Struct, frozen=True):
    """What the line with this number has come to: a line of the output file, or else of the error file."""

    line: int
    ok: bool
    output: bytes


_COLUMNS = (batches.c.record, batches.c.completed, batches.c.failed)
_decoder = msgspec.json.Decoder(Batch)
# Made once, since it takes longer to make a statement than to run it.
_HELD = (
    select(batches.c.sequence, batches.c.holder, *_COLUMNS)
    .where(batches.c.id == bindparam("id"), batches.c.owner == bindparam("owner"))
    .with_for_update()
)
_AMONG_DONE = select(results_of.c.line).where(
    results_of.c.batch == bindparam("batch"), results_of.c.line.in_(bindparam("lines", expanding=True))
)
_ADD_RESULTS = insert(results_of)
_ADD_COUNTS = (
    update(batches)
    .where(batches.c.sequence == bindparam("number"))
    .values(
        completed=batches.c.completed + bindparam("good"),
        failed=batches.c.failed + bindparam("bad"),
        result_bytes=batches.c.result_bytes + bindparam("size"),
    )
)


class Lease(msgspec.Struct, frozen=True):
    """How one of several servers runs a batch.

    Attributes:
        holder: its name, which no other has.
        runner: the kind of batches that it may run.
        seconds: that a batch is held for, each time; infinite where no other server can ask.
    """

    holder: str = "alone"
    runner: str = ""
    seconds: float = inf

    @property
    def is_shared(self) -> bool:
        """Whether other servers may take a batch."""
        return self.seconds < inf


class BatchStore:
    """All batches of a server, or of several.

    Args:
        now: seconds since 1970 by the database's clock.
    """

    def __init__(
        self,
        database: Transactions,
        limits: StorageQuota,
        lease: Lease | None = None,
        now: Callable[[Connection], float] = clock,
    ) -> None:
        self.limits = limits
        self.lease = lease or Lease()
        self._database, self._now = database, now

    async def create(self, batch: Batch) -> None:
        """Keep a new batch. Raises RequestError where its input is none, or where too many have not ended."""

        def work(connection: Connection) -> None:
            alone(connection, "files")
            file = find_file(connection, batch.input_file_id, batch.owner, "input_file_id")
            if file.purpose != INPUT_PURPOSE:
                raise InvalidParameter("input_file_id", f"is for {file.purpose!r}; upload it for {INPUT_PURPOSE!r}.")
            _make_place(connection, batch.owner, self.limits)
            fields = {name: getattr(batch, name) for name in ("id", "owner", "status", "input_file_id", "created_at")}
            counts = dict.fromkeys(("completed", "failed", "result_bytes", "held_until"), 0)
            record, runner = msgspec.json.encode(batch), self.lease.runner
            connection.execute(insert(batches).values(**fields, **counts, record=record, runner=runner, holder=""))

        await self._database.run(work)

    async def get(self, batch_id: str, owner: str) -> Batch:
        """A batch of this owner. Raises BatchNotFound."""
        return await self._database.run(lambda connection: _find(connection, batch_id, owner))

    async def page(self, owner: str, page: PageRequest) -> tuple[list[Batch], bool]:
        """Some of the owner's batches, and whether more follow. Raises BatchNotFound where there is no `after`."""
        found = await self._database.run(lambda connection: select_page(connection, batches, _COLUMNS, owner, page))
        if found is None:
            raise _not_found(page.after or "", "after")
        rows, more = found
        return [_batch(row) for row in rows], more

    async def unfinished(self) -> list[Batch]:
        """Those that this server may run and no other does, in the order in which they were made."""

        def work(connection: Connection) -> list[Batch]:
            query = select(*_COLUMNS).where(self._free(connection)).order_by(batches.c.sequence)
            return [_batch(row) for row in connection.execute(query)]

        return await self._database.run(work)

    def _free(self, connection: Connection) -> ColumnElement[bool]:
        """Of batches: whether this server may run it, and no other does."""
        goes_on = batches.c.status.not_in(ENDED)
        if not self.lease.is_shared:
            return goes_on
        free = or_(batches.c.holder.in_(("", self.lease.holder)), batches.c.held_until <= self._now(connection))
        return and_(goes_on, batches.c.runner == self.lease.runner, free)

    async def take(self, batch: Batch) -> Batch:
        """Hold a batch, or go on to; as it is now. Raises BatchTaken where another server holds it, or it has ended."""

        def work(connection: Connection) -> Batch:
            until = self._now(connection) + self.lease.seconds
            held = update(batches).where(batches.c.id == batch.id, self._free(connection))
            if not connection.execute(held.values(holder=self.lease.holder, held_until=until)).rowcount:
                raise BatchTaken(f"The batch {batch.id!r} is another server's now, or has ended.")
            return _find(connection, batch.id, batch.owner)

        return await self._database.run(work)

    async def leave(self, batch: Batch) -> None:
        """Hold a batch no longer, if it is held."""
        left = update(batches).where(batches.c.id == batch.id, batches.c.holder == self.lease.holder)
        await self._database.run(lambda connection: _run(connection, left.values(holder="")))

    async def change(self, batch: Batch, expected: BatchStatus, **fields: Any) -> Batch:
        """Set fields of a batch that is held, if it still has the status that is expected; the batch as it is now.

        Raises BatchTaken.
        """

        def work(connection: Connection) -> Batch:
            _, now = self._held(connection, batch)
            return _update(connection, now, **fields) if now.status == expected else now

        return await self._database.run(work)

    def _held(self, connection: Connection, batch: Batch) -> tuple[int, Batch]:
        """The number of a batch, and the batch as it is until the transaction ends.

        Raises BatchTaken where this server does not hold it.
        """
        row = connection.execute(_HELD, {"id": batch.id, "owner": batch.owner}).one_or_none()
        if row is None:
            raise _not_found(batch.id)
        number, holder, *found = row
        if holder != self.lease.holder:
            raise BatchTaken(f"The batch {batch.id!r} is run by another server.")
        return number, _batch(found)

    async def cancel(self, batch_id: str, owner: str, now: int) -> Batch:
        """Have a batch end early. Raises BatchNotFound, BatchHasEnded."""

        def work(connection: Connection) -> Batch:
            batch = _find(connection, batch_id, owner, locked=True)
            if batch.status in ENDED or batch.status == "finalizing":
                raise BatchHasEnded(f"The batch {batch_id!r} is {batch.status}; there is nothing left to cancel.")
            if batch.status == "cancelling":
                return batch
            return _update(connection, batch, status="cancelling", cancelling_at=now)

        return await self._database.run(work)

    async def add_results(self, batch: Batch, results: Sequence[LineResult]) -> None:
        """Keep results of a batch that is held, and count them, each line once. Raises BatchTaken."""

        def work(connection: Connection) -> None:
            number, _ = self._held(connection, batch)
            known = {"batch": number, "lines": [result.line for result in results]}
            done = set(connection.scalars(_AMONG_DONE, known))
            new = {result.line: result for result in results if result.line not in done}.values()
            if not new:
                return
            rows = [{"batch": number, "line": each.line, "ok": each.ok, "output": each.output} for each in new]
            connection.execute(_ADD_RESULTS, rows)
            good = sum(each.ok for each in new)
            size = sum(len(each.output) for each in new)
            connection.execute(_ADD_COUNTS, {"number": number, "good": good, "bad": len(new) - good, "size": size})

        await self._database.run(work)

    async def check_room(self, owner: str) -> None:
        """Raise StorageLimitReached where the tenant has no room for results, StorageFull where the server has none."""
        await self._database.run(lambda connection: check_room(connection, self.limits, owner))

    async def lines_done(self, batch_id: str) -> set[int]:
        """The numbers of the lines that have a result."""
        query = select(results_of.c.line).where(results_of.c.batch == _number(batch_id))
        return await self._database.run(lambda connection: set(connection.scalars(query)))

    async def results(self, batch_id: str, ok: bool, after: int, most: int) -> list[LineResult]:
        """The results of one kind that follow the line `after`, at most `most`, in the order of their lines."""
        query = (
            select(results_of.c.line, results_of.c.ok, results_of.c.output)
            .where(results_of.c.batch == _number(batch_id), results_of.c.ok == ok, results_of.c.line > after)
            .order_by(results_of.c.line)
            .limit(most)
        )
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [LineResult(*row) for row in rows]

    async def finish(self, batch: Batch, files: Sequence[StoredFile], status: BatchStatus, **fields: Any) -> Batch:
        """The end of a batch that is held: placed files exist, results have become them. Raises BatchTaken."""

        def work(connection: Connection) -> Batch:
            _, now = self._held(connection, batch)
            for file in files:
                insert_file(connection, file)
            connection.execute(delete(results_of).where(results_of.c.batch == _number(batch.id)))
            connection.execute(update(batches).where(batches.c.id == batch.id).values(result_bytes=0, holder=""))
            return _update(connection, now, status=status, **fields)

        return await self._database.run(work)

    async def forget_old(self, before: int) -> None:
        """Forget batches that were made before a time, and have ended."""
        old = delete(batches).where(batches.c.status.in_(ENDED), batches.c.created_at < before)
        await self._database.run(lambda connection: _run(connection, old))


def _run(connection: Connection, statement: Any) -> None:
    connection.execute(statement)


def _number(batch_id: str) -> Any:
    return select(batches.c.sequence).where(batches.c.id == batch_id).scalar_subquery()


def _make_place(connection: Connection, owner: str, limits: StorageQuota) -> None:
    """Forget what ended first where too much is remembered. Raises TooManyBatches where too many have not ended."""
    own = limits.of(owner)
    has_ended = batches.c.status.in_(ENDED)
    for whose, unfinished, most, asked in (
        (batches.c.owner == owner, own.unfinished_batches, own.batches, "this API key's" if owner else "this server's"),
        (true(), limits.unfinished_batches, limits.batches, "this server's"),
    ):
        counts = select(func.coalesce(func.sum(case((has_ended, 1), else_=0)), 0), func.count()).where(whose)
        ended, count = connection.execute(counts.select_from(batches)).one()
        if count - ended >= unfinished:
            raise TooManyBatches(
                f"{unfinished} of {asked} batches have not ended, and no more are taken; wait for one, or cancel one "
                "with POST /v1/batches/{id}/cancel."
            )
        oldest = select(batches.c.sequence).where(has_ended, whose).order_by(batches.c.sequence)
        oldest = oldest.limit(max(0, count + 1 - most))
        connection.execute(delete(batches).where(batches.c.sequence.in_(oldest)))


def _find(connection: Connection, batch_id: str, owner: str, *, locked: bool = False) -> Batch:
    """`locked`: no other transaction changes it before this one has ended."""
    query = select(*_COLUMNS).where(batches.c.id == batch_id, batches.c.owner == owner)
    row = connection.execute(query.with_for_update() if locked else query).one_or_none()
    if row is None:
        raise _not_found(batch_id)
    return _batch(row)


def _update(connection: Connection, batch: Batch, **fields: Any) -> Batch:
    changed = msgspec.structs.replace(batch, **fields)
    values = {"status": changed.status, "record": msgspec.json.encode(changed)}
    connection.execute(update(batches).where(batches.c.id == batch.id).values(values))
    return changed


def _batch(row: Sequence[Any]) -> Batch:
    record, completed, failed = row
    return msgspec.structs.replace(_decoder.decode(record), completed=completed, failed=failed)


def _not_found(batch_id: str, param: str | None = None) -> BatchNotFound:
    return BatchNotFound(f"There is no batch {batch_id[:80]!r}; it may have been forgotten with age.", param=param)
