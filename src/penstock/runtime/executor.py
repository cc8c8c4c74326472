"""The executor that computes plans with a model: `execute(plan)` → tokens.

It is a table of rows and an object for each kind of work: generating, with drafts or without, scoring, pooling, and
launching. On a device, a step whose tokens can be chosen there is launched, and the next one behind it with tokens that
are not known here yet: what the host does for one step is done while the device computes the next.
"""

import time
from collections.abc import Callable, Sequence

from penstock.core.plan import BeginRow, RowPlan, SampleResult, StepPlan, StepResult
from penstock.runtime.beams import BeamSearcher
from penstock.runtime.device_memory import raise_if_memory_ended
from penstock.runtime.generating import Generator
from penstock.runtime.handles import CompletedStep, LaunchedStep, PostponedStep, StagedStep, StepNotes, all_done
from penstock.runtime.launching import Launcher
from penstock.runtime.parts import ExecutorParts
from penstock.runtime.pooling import Pooler
from penstock.runtime.reporting import Reporter, ReportingStep
from penstock.runtime.rows import RowTable
from penstock.runtime.verifying import DraftVerifier
from penstock.stepping.storage import Blocks, Took, no_time

Step = CompletedStep | PostponedStep | LaunchedStep | StagedStep


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
        self._beams, self._reader = BeamSearcher(table, choosing.sampler), computing.reader
        self._plain = Generator(table, computing.model, choosing.sampler, beams=self._beams, reader=self._reader)
        self._generator = self._plain
        if self._verifier is not None:
            # Drafts are not for models with sources.
            self._generator = Generator(table, computing.model, choosing.sampler, self._verifier)
        self._pooler = Pooler(table, computing.encoder, computing.vectors_of)
        # Tokens that are drafted have to be known here.
        can_launch = choosing.sampler.is_elsewhere and drafting is None
        self._launcher = Launcher(table, computing.model, choosing.sampler) if can_launch else None
        self._reporter = None if parts.tiers is None else Reporter(parts.tiers, self._storages[1:])
        self._staged = computing.staged

    def execute(self, plan: StepPlan) -> Step | ReportingStep:
        """Compute `plan`, or begin to, and return its handle. Handles are to be asked for their results in order.

        Effects in order: end rows, begin rows, swap, copy blocks, compute. A step whose tokens cannot be chosen on the
        device is computed when all before it have been finished. Where steps go through stages, rows end when those
        before have been finished, since these may have them.

        Raises StepOutOfMemory where a GPU's memory ended; then all of the plan's rows are to end, and others may go on.
        """
        started = time.perf_counter()
        for sequence in () if self._staged else plan.end:
            self._end(sequence)
        for begin in plan.begin:
            self._begin(begin)
        try:
            handle = self._handle(plan, started)
            return handle if self._reporter is None else self._reporter.watched(plan, handle)
        except BaseException as error:
            if self._reporter is not None:
                self._reporter.leave(plan.transfers)
            if isinstance(error, RuntimeError):
                raise_if_memory_ended(error)
            raise

    def _handle(self, plan: StepPlan, started: float) -> Step:
        """Compute the step here, or let a device, or other stages."""
        if self._staged:
            finish = self._begun(plan, plan.rows, started)
            return StagedStep(lambda: self._finished(plan, finish))
        if self._launcher is None:
            return CompletedStep(self._complete(plan, plan.rows, started))
        return self._launch(self._launcher, plan, started)

    def _launch(self, launcher: Launcher, plan: StepPlan, started: float) -> Step:
        """Let the device compute the step, if it can."""
        # Where an engine was interrupted, it has not asked for the results of what was launched before.
        launcher.wait(leave=1)
        if launcher.can_launch(plan):
            took = self._begin_transfers(plan)
            return launcher.launch(plan, started, took)
        if launcher.is_busy:
            return PostponedStep(lambda: self._complete_behind(launcher, plan, time.perf_counter()))
        return CompletedStep(self._complete_behind(launcher, plan, started))

    def _complete_behind(self, launcher: Launcher, plan: StepPlan, started: float) -> StepResult:
        """Compute a step here when the device has computed those before it."""
        try:
            launcher.wait()
            return self._complete(plan, self.table.without_void(plan), started)
        except RuntimeError as error:
            raise_if_memory_ended(error)
            raise

    def _complete(self, plan: StepPlan, rows: Sequence[RowPlan], started: float) -> StepResult:
        """Compute some rows of the step, from its copies to its tokens."""
        return self._begun(plan, rows, started)()

    def _finished(self, plan: StepPlan, finish: Callable[[], StepResult]) -> StepResult:
        """The result of a step whose turn it is to be computed by the last stage."""
        for sequence in plan.end:
            self._end(sequence)
        return finish()

    def _begun(self, plan: StepPlan, rows: Sequence[RowPlan], started: float) -> Callable[[], StepResult]:
        """Begin some rows of the step, from its copies on; what is returned waits for its tokens."""
        took, notes = self._begin_transfers(plan), StepNotes()
        computed = self._begin_rows(rows, notes)

        def finish() -> StepResult:
            samples = tuple(result for each in computed for result in each())
            # Of a step that goes through stages, all of its way: so long do its sequences wait for their tokens.
            seconds = time.perf_counter() - started
            return StepResult(
                plan.number,
                samples,
                seconds,
                notes.sampling,
                notes.drafting,
                transfers=all_done(plan, took),
                attended=notes.attended,
                beams=notes.beams,
            )

        return finish

    def _end(self, sequence: int) -> None:
        self.table.end(sequence)
        self._beams.end(sequence)
        if self._verifier is not None:
            self._verifier.end(sequence)

    def _begin(self, begin: BeginRow) -> None:
        row = self.table.begin(begin)
        self._beams.begin(begin)
        if self._verifier is not None and begin.sequence not in self._beams:
            self._verifier.begin(begin.sequence, row, begin.cache_salt)

    def _begin_transfers(self, plan: StepPlan) -> Took:
        """Carry out the plan's transfers: all are over, in the order of the device, before its rows are computed.

        Returns what those from the processor's memory take.
        """
        took = no_time
        if not plan.transfers:
            return took
        if self._reporter is not None:
            self._reporter.begin(plan.transfers)
        if out := plan.pairs("pool", "host"):
            self._storage.swap_out(out)
        if back := plan.pairs("host", "pool"):
            took = self._storage.swap_in(back)
        if copies := plan.pairs("pool", "pool"):
            for storage in self._storages:
                storage.copy_blocks(copies)
        return took

    def _begin_rows(self, rows: Sequence[RowPlan], notes: StepNotes) -> list[Callable[[], list[SampleResult]]]:
        """Begin rows of each kind; what is returned waits for their results, one after another."""
        if not rows:
            return []
        pooled, beams = self.table.pooled, self._beams if self._verifier is not None else ()
        if not pooled and not beams:
            return [self._generator.begin(rows, notes)]
        # Rows don't use one another's results, so that the kinds can be computed one after the other. Nothing is
        # drafted for beams.
        pooling = [row for row in rows if row.sequence in pooled]
        searching = [row for row in rows if row.sequence in beams]
        generating = [row for row in rows if row.sequence not in pooled and row.sequence not in beams]
        begun = [self._generator.begin(generating, notes)] if generating else []
        begun += [self._plain.begin(searching, notes)] if searching else []
        return [*begun, *([self._pooler.begin(pooling)] if pooling else [])]

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and does not keep the next step waiting; whether more is left."""
        self._storage.use_idle_time()
        if self._reporter is not None:
            self._reporter.use_idle_time()
        return self._model.use_idle_time()

    def warm_up(self) -> None:
        """Compute a token into a block that no sequence holds yet, so that the first request need not pay for it."""
        if self._reader is not None:
            self._reader.results(self.table.one_token_source())
        self._model.run(self.table.one_token())
