"""Runs batches to their end, one after another, in the order in which they were made.

All that this module knows is in the store. So a run that is cut off, for any reason, goes on from what was kept, here
or at another server that has the same store. A line is done once its result is kept; lines under way are aborted at the
end of the server and run again. While the disk takes nothing, results wait in memory, and no more lines begin.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from penstock.batches.input import InputLine, LineProblem, check_input, pending_lines
from penstock.batches.lines import Lines, unanswered_line
from penstock.core.errors import EngineUnavailable
from penstock.storage.batches import OUTPUT_PURPOSE, Batch, BatchProblem, BatchStatus, LineResult
from penstock.storage.errors import BatchTaken, StorageLimitReached, StorageUnavailable, StoredFileNotFound
from penstock.storage.files import StoredFile
from penstock.storage.store import Store

logger = logging.getLogger("penstock.server")

_RESULTS_READ = 64
_IDLE_SECONDS = 3600.0
# Between two looks for batches that other servers with the same store were asked for, or have left.
_LOOK_SECONDS = 5.0
_GLANCE_SECONDS = 30.0
_ENGINE_POLL_SECONDS = 0.2
_RETRY_SECONDS = 10.0
# Between two looks for room, where there is none for results.
_FULL_SECONDS = 1.0
Answer = TypeVar("Answer")


class LineCounts(Protocol):
    """Where it is counted what becomes of lines, as metrics tell it."""

    batch_lines: dict[str, int]
    batch_lines_running: int


class BatchRunner:
    """One for each store. Each line runs in a task of its own, and everything else in one task.

    Attributes:
        waiting: why no batch comes on now, where that is the disk.
    """

    def __init__(self, store: Store, lines: Lines, metrics: LineCounts) -> None:
        self.waiting: str | None = None
        self._condition = store.condition
        self._files = store.files
        self._batches = store.batches
        self._limits = store.files.limits
        self._lines = lines
        self._metrics = metrics
        self._woken = asyncio.Event()
        self._tidied = float("-inf")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run batches while the block does."""
        task = asyncio.ensure_future(self._forever())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def wake(self) -> None:
        """There is a new batch, or one to cancel."""
        self._woken.set()

    async def _forever(self) -> None:
        while True:
            try:
                await self._when_stored(self._round)
            except Exception as error:
                logger.error("Batches wait for %.0f s: something failed.", _RETRY_SECONDS, exc_info=error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _round(self) -> None:
        self._woken.clear()
        batch = await self._attend()
        if batch is not None:
            await self._held(batch, self._run_held)
            return
        if time.monotonic() > self._tidied + _IDLE_SECONDS:
            await self._files.tidy()
            await self._batches.forget_old(int(time.time()) - self._limits.seconds_kept)
            self._tidied = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS if self._batches.lease.is_shared else _IDLE_SECONDS):
                await self._woken.wait()

    async def _held(self, batch: Batch, work: Callable[[Batch], Awaitable[None]]) -> None:
        """Do what is to be done with a batch, while no other server does anything with it."""
        try:
            batch = await self._batches.take(batch)
            async with self._holding(batch):
                await work(batch)
        except BatchTaken as taken:
            logger.info("%s", taken)

    @contextlib.asynccontextmanager
    async def _holding(self, batch: Batch) -> AsyncIterator[None]:
        """While the block runs, go on to hold a batch; where that was taken or changed elsewhere, wake who runs it."""
        seconds = self._batches.lease.seconds

        async def hold() -> None:
            while True:
                await asyncio.sleep(seconds / 3)
                # Where the database does not answer, the batch's next transaction says whether it is held.
                with contextlib.suppress(StorageUnavailable):
                    if await self._taken(batch):
                        self._woken.set()

        task = asyncio.ensure_future(hold()) if self._batches.lease.is_shared else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                with contextlib.suppress(StorageUnavailable):
                    await self._batches.leave(batch)

    async def _taken(self, batch: Batch) -> bool:
        """Whether a batch, that is held for longer where it can be, is another server's, or does not go on."""
        try:
            return (await self._batches.take(batch)).status != batch.status
        except BatchTaken:
            return True

    async def _run_held(self, batch: Batch) -> None:
        try:
            if batch.status == "in_progress":
                await self._run(batch)
        except StorageLimitReached as error:
            problem = BatchProblem(error.code, error.message)
            await self._when_stored(lambda: self._finish(batch, "failed", problem))
        except (StoredFileNotFound, LineProblem):
            message = "The input file has gone, or is another than the one that was checked."
            await self._finish(batch, "failed", BatchProblem("input_file_lost", message, "input_file_id"))

    async def _when_stored(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of `work`, which is done again, later and later, as long as the disk fails it."""
        delays = self._condition.delays()
        while True:
            try:
                return await work()
            except StorageUnavailable as error:
                self.waiting = error.message
                try:
                    await self._condition.recovery(delays.next())
                finally:
                    self.waiting = None

    async def _attend(self, running: str | None = None) -> Batch | None:
        """Check and end batches other than the running one; the first that has lines to run."""
        first = None
        for batch in await self._batches.unfinished():
            if batch.id == running:
                continue
            if batch.status != "in_progress" or time.time() >= batch.expires_at:
                await self._held(batch, self._advance)
                batch = await self._batches.get(batch.id, batch.owner)
            if batch.status == "in_progress" and first is None and self._may_run(batch):
                first = batch
        return first

    def _may_run(self, batch: Batch) -> bool:
        """Whether its lines may run here. One that others may run waits for no engine of this server."""
        return self._lines.serves(batch) and (self._lines.is_ready() or not self._batches.lease.is_shared)

    async def _advance(self, batch: Batch) -> None:
        """Do whatever is to be done with a batch but for running its lines."""
        if batch.status == "validating":
            batch = await self._validate(batch)
        if batch.status == "finalizing":
            await self._finish(batch, "completed")
        elif batch.status == "cancelling":
            await self._finish(batch, "cancelled")
        elif batch.status == "in_progress" and time.time() >= batch.expires_at:
            await self._finish(batch, "expired")

    async def _validate(self, batch: Batch) -> Batch:
        """The batch as it is once its input has been checked."""
        try:
            _, contents = await self._files.open(batch.input_file_id, batch.owner)
        except StoredFileNotFound as error:
            total, problems = 0, [BatchProblem("input_file_lost", error.message, "input_file_id")]
        else:
            with contents:
                total, problems = await asyncio.to_thread(check_input, contents, batch.endpoint, self._limits)
        now = int(time.time())
        fields: dict[str, Any] = {"total": total, "problems": tuple(problems)}
        fields |= (
            {"status": "failed", "failed_at": now} if problems else {"status": "in_progress", "in_progress_at": now}
        )
        return await self._batches.change(batch, "validating", **fields)

    async def _run(self, batch: Batch) -> None:
        """Run lines until all are done, or until the batch expires or is cancelled."""
        _, contents = await self._files.open(batch.input_file_id, batch.owner)
        with contents:
            done = await self._batches.lines_done(batch.id)
            attended = time.monotonic()
            work = _LinesAtWork(self._lines, batch, pending_lines(contents, batch.endpoint, self._limits, done))
            try:
                while time.time() < batch.expires_at:
                    if self._woken.is_set() or time.monotonic() > attended + _GLANCE_SECONDS:
                        self._woken.clear()
                        attended = time.monotonic()
                        await self._when_stored(lambda: self._attend(batch.id))
                        now = await self._when_stored(lambda: self._batches.take(batch))
                        if now.status != "in_progress":
                            return
                    if not len(work) and not self._may_run(batch):
                        return
                    room = not work.has_more or await self._has_room(batch)
                    if room and not await work.fill():
                        ended: dict[str, Any] = {"status": "finalizing", "finalizing_at": int(time.time())}
                        await self._batches.change(batch, "in_progress", **ended)
                        return
                    self._metrics.batch_lines_running = len(work)
                    if len(work):
                        await self._keep(batch, await work.results(self._woken))
                    elif not room:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_FULL_SECONDS):
                                await self._woken.wait()
            finally:
                self.waiting = None
                self._metrics.batch_lines_running = 0
                await work.stop()

    async def _has_room(self, batch: Batch) -> bool:
        """Whether more lines may be begun. What was computed is kept, whatever there is room for."""
        try:
            await self._batches.check_room(batch.owner)
        except StorageUnavailable as error:
            self.waiting = error.message
            return False
        self.waiting = None
        return True

    async def _keep(self, batch: Batch, results: list[LineResult]) -> None:
        if results:
            await self._when_stored(lambda: self._batches.add_results(batch, results))
            for result in results:
                self._metrics.batch_lines["completed" if result.ok else "failed"] += 1

    async def _finish(self, batch: Batch, status: BatchStatus, problem: BatchProblem | None = None) -> None:
        """Make files of the results, and end the batch."""
        files: list[StoredFile] = []
        fields: dict[str, Any] = {f"{status}_at": int(time.time())}
        if problem is not None:
            fields["problems"] = (*batch.problems, problem)
        try:
            for kind, ok in (("output", True), ("error", False)):
                expired = self._unanswered(batch) if status == "expired" and not ok else None
                file = await self._collect(batch, ok, f"{batch.id}_{kind}.jsonl", expired)
                if file is not None:
                    files.append(file)
                    fields[f"{kind}_file_id"] = file.id
            batch = await self._batches.finish(batch, files, status, **fields)
        except Exception:
            await self._files.remove_contents({file.id for file in files})
            raise
        logger.info(
            "%s %s: %d requests, %d answered, %d failed", batch.id, status, batch.total, batch.completed, batch.failed
        )

    async def _collect(
        self, batch: Batch, ok: bool, filename: str, rest: AsyncIterator[bytes] | None
    ) -> StoredFile | None:
        """The results of one kind, and `rest` behind them, as a placed file; None where there are none."""
        incoming = await self._files.begin(batch.owner, counted=True)
        try:
            results, last = [LineResult(0, ok, b"")], 0
            while results:
                results = await self._batches.results(batch.id, ok, last, _RESULTS_READ)
                for result in results:
                    await incoming.write(result.output)
                    last = result.line
            if rest is not None:
                async for text in rest:
                    await incoming.write(text)
            if not incoming.size:
                return None
            return await self._files.place(incoming, OUTPUT_PURPOSE, filename, batch.output_seconds)
        finally:
            await incoming.discard()

    async def _unanswered(self, batch: Batch) -> AsyncIterator[bytes]:
        """Lines of the error file for requests that were not run in time."""
        message = "This request was not run before the completion window ended."
        done = await self._batches.lines_done(batch.id)
        try:
            _, contents = await self._files.open(batch.input_file_id, batch.owner)
        except StoredFileNotFound:
            logger.warning("%s has expired, and its input has gone: its other requests are not listed.", batch.id)
            return
        with contents:
            source = pending_lines(contents, batch.endpoint, self._limits, done)
            while (line := await asyncio.to_thread(next, source, None)) is not None:
                yield unanswered_line(line.custom_id, "batch_expired", message)


class _LinesAtWork:
    """The lines of a batch that run now, and those to come."""

    def __init__(self, runner: Lines, batch: Batch, source: Iterator[InputLine]) -> None:
        self._runner = runner
        self._batch = batch
        self._source = source
        self._exhausted = False
        self._again: deque[InputLine] = deque()
        self._tasks: dict[asyncio.Task[LineResult], InputLine] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def has_more(self) -> bool:
        """Whether there are lines that do not run yet, as far as is known."""
        return bool(self._again or not self._exhausted)

    async def fill(self) -> bool:
        """Begin lines up to the number that may run, if any can; False where all are done."""
        while len(self._tasks) < self._runner.at_a_time and self._runner.is_ready():
            line = self._again.popleft() if self._again else await self._next()
            if line is None:
                break
            self._tasks[asyncio.create_task(self._runner.run(line, self._batch))] = line
        return bool(self._tasks or self.has_more)

    async def _next(self) -> InputLine | None:
        if self._exhausted:
            return None
        line = await asyncio.to_thread(next, self._source, None)
        self._exhausted = line is None
        return line

    async def results(self, woken: asyncio.Event) -> list[LineResult]:
        """Wait for some, not for ever, and no longer than until `woken`."""
        waiter = asyncio.create_task(woken.wait())
        seconds = _GLANCE_SECONDS if self._runner.is_ready() else _ENGINE_POLL_SECONDS
        seconds = min(seconds, max(0.0, self._batch.expires_at - time.time()))
        try:
            done, _ = await asyncio.wait({waiter, *self._tasks}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        results = []
        for task in [task for task in self._tasks if task in done]:
            line = self._tasks.pop(task)
            try:
                results.append(task.result())
            except EngineUnavailable:
                self._again.append(line)
        return results

    async def stop(self) -> None:
        """Abort the lines that run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
