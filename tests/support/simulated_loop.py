"""An event loop on a simulated clock: nobody waits for real, and what happens happens in the same order each time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


MOST_ROUNDS = 200_000


class NoEnd(AssertionError):
    """What is waited for will never come."""


class _NoDescriptors:
    """In place of a selector: there is nothing to select from, so that waiting is moving the clock."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop
        self._rounds = 0

    def select(self, timeout: float | None) -> list[object]:
        self._rounds += 1
        if timeout is None or self._rounds > MOST_ROUNDS:
            raise NoEnd("everybody waits, and nothing will ever happen" if timeout is None else "no end in sight")
        self._loop.now += max(0.0, timeout)
        return []

    def close(self) -> None:
        pass


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs coroutines in one thread on a clock of its own.

    Attributes:
        now: seconds; whoever raises it lets time jump.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _NoDescriptors(self)
        # Timers less than this apart are due together; late on the clock, numbers are hardly finer.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The simulated time."""
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., T], *arguments: Any
    ) -> "asyncio.Future[T]":
        """What threads would do is done at once: there are none here."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        raise AssertionError("another thread takes part in the simulation")


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a loop of its own; whatever it has started and left ends with it."""
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        loop._selector._rounds = 0
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
