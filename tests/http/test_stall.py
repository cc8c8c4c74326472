"""The watch over readers, with a transport that says what the test tells it to."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from penstock.http.stall import LOOKS, StalledClientWatch


class Transport:
    """What waits to be read at each look; the last stays."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]

    def abort(self) -> None:
        self.aborted = True


def watch(sizes: Sequence[int], looks: int, end: bool = False) -> Transport:
    """The transport after so many looks."""

    async def main() -> Transport:
        transport, timers = Transport(sizes), []
        loop = asyncio.get_running_loop()

        def call_later(delay: float, callback: Any) -> Any:
            assert delay == 16.0 / LOOKS
            timers.append(callback)
            return asyncio.TimerHandle(0.0, callback, (), loop)

        loop.call_later = call_later  # type: ignore[assignment,method-assign]
        stall = StalledClientWatch(16.0)
        stall.begin(cast(asyncio.Transport, transport))
        stall.begin(cast(asyncio.Transport, transport))
        assert len(timers) == 1
        if end:
            stall.end()
        for _ in range(looks):
            if timers and not end:
                timers.pop()()
        return transport

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("sizes", "looks", "aborted"),
    [
        ([100], LOOKS - 1, False),
        ([100], LOOKS, True),
        # It has read something in between.
        ([100, 100, 100, 99], LOOKS, False),
        ([100, 100, 100, 99], LOOKS + 3, True),
        (list(range(100, 0, -1)), 50, False),
        # Everything was read.
        ([100, 0], 50, False),
    ],
)
def test_only_who_takes_nothing_is_cut_off(sizes: list[int], looks: int, aborted: bool) -> None:
    assert watch(sizes, looks).aborted == aborted


def test_nothing_happens_after_the_end() -> None:
    assert not watch([100], 50, end=True).aborted
