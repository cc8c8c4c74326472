"""A request at two replicas: the one that begins its answer first is heard."""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from penstock.gateway.attempt import Attempt
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.exchange import Head
from penstock.gateway.hosted import Answer


class Opened(NamedTuple):
    """The beginning of an answer, and where the rest of it comes from."""

    answer: Answer
    head: Head
    piece: bytes


class Race:
    """An attempt, and maybe a second one.

    Args:
        open_: asks a replica, until its context ends.
        one_more: the second attempt; None where there is to be none.
        lost: is told of one that is not heard, and why.

    Attributes:
        ahead: the attempt that has begun first, or failed last.
        left: the one that had not begun when that did.
    """

    def __init__(
        self,
        first: Attempt,
        open_: Callable[[Attempt], AbstractAsyncContextManager[Opened]],
        one_more: Callable[[], Attempt | None],
        lost: Callable[[Attempt, str], None],
    ) -> None:
        self.ahead = first
        self.left: Attempt | None = None
        self._open, self._one_more, self._lost = open_, one_more, lost
        self._running: dict[asyncio.Task[tuple[Opened, contextlib.AsyncExitStack]], Attempt] = {}

    async def run(self, seconds: float, stack: contextlib.AsyncExitStack) -> Opened:
        """The beginning of the answer, which `stack` leaves; the second one is asked after `seconds`.

        Raises ReplicaBroken where the last of them does not begin.
        """
        has_won = False
        self._ask(self.ahead)
        try:
            done, _ = await asyncio.wait(self._running, timeout=seconds)
            if not done and (other := self._one_more()) is not None:
                self._ask(other)
            while True:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in [each for each in self._running if each.done()]:
                    attempt = self._running.pop(task)
                    if not self._running or _refusal(task, attempt) is None:
                        self.ahead = attempt
                        opened, own = task.result()
                        await stack.enter_async_context(own)
                        has_won = True
                        return opened
                    if task.exception() is not None or task.result()[0].head.is_fault:
                        attempt.failed()
                    self._lost(attempt, _refusal(task, attempt) or "")
                    await _leave(task)
        finally:
            left, self._running = self._running, {}
            for task, attempt in left.items():
                task.cancel()
                # The one that is ahead is its caller's to end.
                if attempt is not self.ahead:
                    self.left = attempt if has_won else None
                    self._lost(attempt, "left, since another replica began sooner" if has_won else "left")
            # Whatever becomes of this one meanwhile, they are left.
            leaving = asyncio.create_task(_leave_all(left))
            _leaving.add(leaving)
            leaving.add_done_callback(_leaving.discard)
            await asyncio.shield(leaving)

    def _ask(self, attempt: Attempt) -> None:
        self._running[asyncio.create_task(self._opened(attempt))] = attempt

    async def _opened(self, attempt: Attempt) -> tuple[Opened, contextlib.AsyncExitStack]:
        async with contextlib.AsyncExitStack() as own:
            opened = await own.enter_async_context(self._open(attempt))
            return opened, own.pop_all()


def _refusal(task: "asyncio.Task[tuple[Opened, contextlib.AsyncExitStack]]", attempt: Attempt) -> str | None:
    """Why an attempt that is over is not to be heard; None where it is."""
    error = task.exception()
    if error is not None:
        return error.message if isinstance(error, ReplicaBroken) else str(error)
    head = task.result()[0].head
    return f"it answered with status {head.status}" if attempt.is_refused(head) else None


# Tasks that are waited for by no other.
_leaving: set[asyncio.Task[None]] = set()


async def _leave_all(tasks: "Collection[asyncio.Task[tuple[Opened, contextlib.AsyncExitStack]]]") -> None:
    """Wait for the ends of tasks that are cancelled or done, and end what they opened."""
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        await _leave(task)


async def _leave(task: "asyncio.Task[tuple[Opened, contextlib.AsyncExitStack]]") -> None:
    """End what was opened and is not heard."""
    if not task.cancelled() and task.exception() is None:
        await task.result()[1].aclose()
