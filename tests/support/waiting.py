"""Waiting for a state. No verdict depends on how fast a machine is: only what hangs takes as long as the bound."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# Seconds. Also for requests, processes and threads that a test waits for.
PATIENCE = 300.0
_PAUSE = 0.005
# Of looks at what takes a process a second or more, such as its start: a look costs both sides milliseconds.
SELDOM = 0.05

T = TypeVar("T")


def until(condition: Callable[[], object], found: Callable[[], object] | None = None, *, pause: float = _PAUSE) -> None:
    """Wait until `condition()` is true, with a `pause` between looks; fails after PATIENCE and shows `found()`."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the state was not reached" if found is None else found())
        time.sleep(pause)


async def reached(condition: Callable[[], object]) -> None:
    """Wait, beside others on the event loop, until `condition()` is true; fails after PATIENCE."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(_PAUSE)


async def patiently(awaitable: Awaitable[T], seconds: float = PATIENCE) -> T:
    """What comes of it; fails where that takes longer than what does not hang."""
    async with asyncio.timeout(seconds):
        return await awaitable
