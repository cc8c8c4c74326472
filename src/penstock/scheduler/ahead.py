"""How many steps a plan can stand for, since those behind it would have the same rows and decide nothing.

A step that only decodes is followed by another with the same rows, until a sequence ends, blocks run short or a request
comes. Simulated time has no need to plan each of them anew.
"""

from collections.abc import Sequence as Rows

from penstock.cache.manager import KVCache
from penstock.core.config import SchedulerConfig
from penstock.core.facts import StepFacts, Wait
from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.step_builder import PlannedRow

# What keeps the first that waits out for as long as those who run go on, and those behind it, too.
_LASTING: tuple[Wait | None, ...] = ("rows", "blocks")


class Ahead:
    """Looks at a plan that is the only outstanding one.

    Args:
        waiting, running: the scheduler's queues.
    """

    def __init__(self, config: SchedulerConfig, cache: KVCache, waiting: WaitingQueue, running: OrderedQueue) -> None:
        self._cache = cache
        self._waiting = waiting
        self._running = running
        # Drafts are decided anew in each step. What a group with a window has passed, and what records are kept of, is
        # decided where a step begins.
        whole = all(group.record_interval is None and group.sees.last is None for group in cache.spec.groups)
        self._never = bool(config.draft_depth) or not whole
        self._bounded = config.bound_batch

    def most(self, rows: Rows[PlannedRow], facts: StepFacts) -> int:
        """How many steps a plan of these rows can stand for, if no request comes or goes meanwhile; 1: itself."""
        if self._never or not facts.decodes == len(rows) == len(self._running):
            return 1
        # How many rows there may be changes with each step.
        if self._bounded and self._waiting:
            return 1
        if self._waiting.shared or self._cache.transfers.any_awaited or (self._waiting and facts.held not in _LASTING):
            return 1
        # What is kept may be so until a time, and make room for one that waits. What is published goes to the shelf
        # with the next plan.
        if self._cache.pool.num_kept or self._cache.shelves:
            return 1
        left = 0
        for row in rows:
            sequence = row.sequence
            if row.samples != (sequence,) or sequence.background or sequence.pending > 1 or sequence.request.keep:
                return 1
            if sequence.bounded is not None or sequence.beam:
                return 1
            left = min(left or sequence.tokens_left + 1, sequence.tokens_left + 1)
        return self._within_blocks(rows, left)

    def _within_blocks(self, rows: Rows[PlannedRow], most: int) -> int:
        """The most steps, up to `most`, for which there are blocks without taking them from anybody."""
        spec, available = self._cache.spec, self._cache.pool.num_available
        room = [row.sequence.blocks.room - row.end for row in rows]

        def needed(steps: int) -> int:
            return spec.growth * sum(max(0, -(-(steps - 1 - left) // spec.block_size)) for left in room)

        if needed(most) <= available:
            return most
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needed(middle) <= available else (low, middle)
        return low

    def extend(self, rows: Rows[PlannedRow], number: int, steps: int) -> None:
        """Have the rows of plan `number` stand for `steps` steps, at most `most()`."""
        more = steps - 1
        for row in rows:
            sequence = row.sequence
            end = row.end + more
            if self._cache.reserve(sequence.blocks, row.end, end, plan=number, until=number):
                raise RuntimeError(f"plan {number} cannot stand for {steps} steps: blocks are missing")
            row.end = sequence.reserved = end
            sequence.in_flight += more
