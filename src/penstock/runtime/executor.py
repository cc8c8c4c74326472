"""The executor that computes plans with a model: `execute(plan)` → tokens.

It is a table of rows and an object for each kind of work: generating, with drafts or without, scoring, pooling, and
launching. On a device, a step whose tokens can be chosen there is launched, and the next one behind it with tokens that
are not known here yet: what the host does for one step is done while the device computes the next.
"""

import time
from collections.abc import Iterable, Sequence

from penstock.core.plan import BeginRow, RowPlan, SampleResult, StepPlan, StepResult
from penstock.runtime.device_memory import memory_may_end
from penstock.runtime.generating import Generator
from penstock.runtime.handles import CompletedStep, LaunchedStep, PostponedStep, StepTimes
from penstock.runtime.launching import Launcher
from penstock.runtime.parts import ExecutorParts
from penstock.runtime.pooling import Pooler
from penstock.runtime.rows import RowTable
from penstock.runtime.verifying import DraftVerifier
from penstock.stepping.storage import Blocks


class ModelExecutor:
    """Owns everything that is a function of token values: sampling state, block table arrays, KV memory.

    Attributes:
        table: the rows of all sequences.
    """

    def __init__(self, parts: ExecutorParts) -> None:
        computing, choosing, drafting = parts.computing, parts.choosing, parts.drafting
        self._model, self._storage = computing.model, computing.storage
        self._storages: list[Blocks] = [computing.storage, *(drafting.proposer.storages if drafting else ())]
        self.table = table = RowTable(computing.tables, self._storages, choosing.begin)
        self._verifier = None if drafting is None else DraftVerifier(table, choosing.sampler, drafting)
        self._generator = Generator(table, computing.model, choosing.sampler, self._verifier)
        self._pooler = Pooler(table, computing.encoder)
        self._launcher = Launcher(table, computing.model, choosing.sampler)

    @memory_may_end()
    def execute(self, plan: StepPlan) -> CompletedStep | PostponedStep | LaunchedStep:
        """Compute `plan`, or begin to, and return its handle. Handles are to be asked for their results in order.

        Effects in order: end rows, begin rows, swap, copy blocks, compute. A step whose tokens cannot be chosen on the
        device is computed when all before it have been finished.

        Raises StepOutOfMemory where a GPU's memory ended; then all of the plan's rows are to end, and others may go on.
        """
        started = time.perf_counter()
        self._end(plan.end)
        self._begin(plan.begin)
        # Where an engine was interrupted, it has not asked for the results of what was launched before.
        self._launcher.wait(leave=1)
        # What is drafted has to be known here.
        if self._verifier is None and self._launcher.can_launch(plan):
            self._move_blocks(plan)
            return self._launcher.launch(plan, started)
        if self._launcher.is_busy:
            return PostponedStep(lambda: self._complete(plan, time.perf_counter()))
        return CompletedStep(self._complete(plan, started))

    @memory_may_end()
    def _complete(self, plan: StepPlan, started: float) -> StepResult:
        """Compute the step from its copies to its tokens."""
        self._launcher.wait()
        self._move_blocks(plan)
        rows, times = self.table.without_void(plan), StepTimes()
        samples = tuple(self._compute(rows, times)) if rows else ()
        return StepResult(plan.number, samples, time.perf_counter() - started, times.sampling, times.drafting)

    def _end(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.table.end(sequence)
            if self._verifier is not None:
                self._verifier.end(sequence)

    def _begin(self, begins: Iterable[BeginRow]) -> None:
        for begin in begins:
            row = self.table.begin(begin)
            if self._verifier is not None:
                self._verifier.begin(begin.sequence, row, begin.cache_salt)

    def _move_blocks(self, plan: StepPlan) -> None:
        if plan.swap_out or plan.swap_in:
            self._storage.swap(plan.swap_out, plan.swap_in)
        for storage in self._storages:
            storage.copy_blocks(plan.copies)

    def _compute(self, rows: Sequence[RowPlan], times: StepTimes) -> list[SampleResult]:
        pooled = self.table.pooled
        if not pooled:
            return self._generator.compute(rows, times)
        # Rows don't use one another's results, so that the two kinds can be computed one after the other.
        generating = [row for row in rows if row.sequence not in pooled]
        pooling = [row for row in rows if row.sequence in pooled]
        results = self._generator.compute(generating, times) if generating else []
        return [*results, *(self._pooler.compute(pooling) if pooling else ())]

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and does not keep the next step waiting; whether more is left."""
        self._storage.use_idle_time()
        return self._model.use_idle_time()

    def warm_up(self) -> None:
        """Compute a token into a block that no sequence holds yet, so that the first request need not pay for it."""
        self._model.run(self.table.one_token())
