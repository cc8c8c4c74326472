"""The engine's loop without its surroundings: requests in, one step at a time, outputs out."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from penstock.core.errors import EngineError, InvalidParameter, StepOutOfMemory
from penstock.core.events import LoadSnapshot, SampleOutput
from penstock.core.facts import StepFacts
from penstock.core.failpoints import fail_point
from penstock.core.grammar import Grammar
from penstock.core.plan import SampleResult, StepPlan, StepResult
from penstock.core.request import Request
from penstock.scheduler.scheduler import Scheduler


class StepHandle(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the step and return its answer."""


class Executor(Protocol):
    """Computes plans, in order."""

    def execute(self, plan: StepPlan) -> StepHandle:
        """Start computing `plan`."""

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and does not keep the next step waiting; whether more is left."""


class GrammarCompiler(Protocol):
    """Makes grammars ready for the executor; may be called on any thread."""

    def load(self) -> None:
        """Load what the first grammar would otherwise have to wait for."""

    def has(self, grammar: Grammar) -> bool:
        """Whether that has been done already."""

    def compile(self, grammar: Grammar) -> None:
        """Do it; raises RequestError where the grammar cannot be used."""


logger = logging.getLogger("penstock.engine")


def failed_step(plan: StepPlan, cause: BaseException) -> StepResult:
    """The answer to a plan that could not be computed: every sequence with a row in it fails."""
    message = f"The computation of this step failed ({type(cause).__name__}); the engine's log has the details."
    if isinstance(cause, StepOutOfMemory):
        message = cause.message
    sequences = {sequence for row in plan.rows for sequence in (row.sequence, *row.samples)}
    return StepResult(
        plan.number, tuple(SampleResult(sequence, [], "error", error=message) for sequence in sorted(sequences))
    )


class EngineCore:
    """Plan → execute → commit, with the executor injected.

    Attributes:
        failure: why a step could not be computed, once that has happened. Its requests have ended with an error.
        begin_step: called with the requests of each step before it is computed.
        clock: seconds that never go back; on one machine, all processes have the same.
        facts: of the newest step.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, grammars: GrammarCompiler | None = None) -> None:
        """Without `grammars`, no request can have one."""
        self.scheduler = scheduler
        self._executor = executor
        self._grammars = grammars
        self.failure: EngineError | None = None
        self.begin_step: Callable[[frozenset[int]], None] | None = None
        self.clock: Callable[[], float] = time.monotonic
        self.facts = StepFacts()

    def needs_preparation(self, request: Request) -> bool:
        """Whether `prepare` would take a while."""
        grammar = request.sampling.grammar
        return grammar is not None and (self._grammars is None or not self._grammars.has(grammar))

    def use_idle_time(self) -> bool:
        """Do a piece of what no request has needed so far and some will; whether more is left."""
        if self._grammars is not None:
            self._grammars.load()
        return self._executor.use_idle_time()

    def prepare(self, request: Request) -> None:
        """Make ready what the request needs, on any thread; raises RequestError where that is impossible."""
        grammar = request.sampling.grammar
        if grammar is None:
            return
        if self._grammars is None:
            raise InvalidParameter(grammar.param, "this engine cannot hold its output to a grammar.")
        self._grammars.compile(grammar)

    def add(self, request: Request) -> None:
        """Queue a request; raises RequestError where it could never be served."""
        self.scheduler.add(request)

    def abort(self, request_id: int) -> list[SampleOutput]:
        """End a request now; its last events."""
        return self.scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self.scheduler.has_work

    def step(self) -> list[SampleOutput]:
        """One step.

        Where the executor raises, the requests that have a row in the step end with an error and the engine goes on;
        an interrupt is raised again once the step is committed like this.
        """
        began = self.clock()
        plan = self.scheduler.plan(began)
        if plan is None:
            raise EngineError("Requests are waiting but nothing can be computed: the scheduler is stuck.")
        if self.begin_step is not None:
            self.begin_step(self.scheduler.requests_of(plan))
        planned = self.clock()
        try:
            fail_point("engine.step")
            result = self._executor.execute(plan).result()
        except StepOutOfMemory as error:
            # What was computed before stands, and a smaller step may fit.
            logger.exception("step %d ran out of memory", plan.number)
            result = failed_step(plan, error)
        except Exception as error:
            logger.exception("step %d failed", plan.number)
            result = failed_step(plan, error)
            self.failure = EngineError(f"A step failed ({type(error).__name__}: {error}).")
        except BaseException as interrupt:
            self.scheduler.commit(plan, failed_step(plan, interrupt))
            raise
        computed = self.clock()
        outputs = self.scheduler.commit(plan, result)
        self.facts = replace(
            self.scheduler.facts,
            began=began,
            schedule=planned - began + self.clock() - computed,
            draft=result.drafting_seconds,
            execute=computed - planned - result.sampling_seconds - result.drafting_seconds,
            sample=result.sampling_seconds,
        )
        return outputs

    def check(self) -> str | None:
        """What is wrong with the engine's books; None where all is well."""
        try:
            self.scheduler.check()
        except RuntimeError as problem:
            return str(problem)
        return None

    def snapshot(self) -> LoadSnapshot:
        """The engine's load after the newest step."""
        return self.scheduler.snapshot()
