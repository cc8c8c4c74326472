"""The engine's loop without its surroundings: requests in, one step at a time, outputs out."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from penstock.core.errors import EngineError, InvalidParameter, RequestError, StepOutOfMemory
from penstock.core.events import LoadSnapshot, SampleOutput
from penstock.core.facts import StepFacts
from penstock.core.grammar import Grammar
from penstock.core.plan import SampleResult, Shelved, StepPlan, StepResult, failed
from penstock.core.request import Request
from penstock.engine.fail_points import FailPoints
from penstock.engine.pulling import Partners, Pulling
from penstock.scheduler.scheduler import Scheduler


class StepHandle(Protocol):
    """A step that was begun."""

    @property
    def under_way(self) -> bool:
        """Whether it is being computed elsewhere meanwhile, so that the next one can be begun before its result."""

    def result(self) -> StepResult:
        """Wait for the step and return its answer."""


class Executor(Protocol):
    """Computes plans, in the order in which they come."""

    def execute(self, plan: StepPlan) -> StepHandle:
        """Start computing `plan`, behind all before it; their results are asked for in the same order."""

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and does not keep the next step waiting; whether more is left."""


class GrammarCompiler(Protocol):
    """Makes grammars ready for the executor; may be called on any thread."""

    def load(self) -> None:
        """Load what the first grammar would otherwise have to wait for."""

    def check(self, grammar: Grammar, output: Sequence[int]) -> None:
        """Raise InvalidParameter where an output does not begin as the grammar allows."""

    def has(self, grammar: Grammar) -> bool:
        """Whether that has been done already."""

    def compile(self, grammar: Grammar) -> None:
        """Do it; raises RequestError where the grammar cannot be used."""


logger = logging.getLogger("penstock.engine")


def failed_step(plan: StepPlan, cause: BaseException) -> StepResult:
    """The answer to a plan that could not be computed: every sequence with a row in it fails."""
    message = f"The computation of this step failed ({type(cause).__name__}); the engine's log has the details."
    code = None
    if isinstance(cause, StepOutOfMemory):
        message, code = cause.message, cause.code
    sequences = {sequence for row in plan.rows for sequence in (row.sequence, *row.samples)}
    gained = failed(message, code)
    samples = tuple(SampleResult(sequence, gained) for sequence in sorted(sequences))
    return StepResult(plan.number, samples, failed=True)


@dataclass(slots=True, eq=False)
class _Begun:
    """A step that is not committed.

    Attributes:
        plan, requests: what it computes, and for which requests; those are left out where nothing observes steps.
        handle: None where it could not even be begun.
        error: what was in the way.
    """

    plan: StepPlan
    requests: frozenset[int]
    handle: StepHandle | None = None
    error: Exception | None = None

    def result(self) -> StepResult:
        """Wait for its result; raises why there is none."""
        if self.handle is None:
            raise self.error or EngineError("The step was not begun.")
        return self.handle.result()


class EngineCore:
    """Plan → execute → commit, with the executor injected.

    Attributes:
        failure: why a step could not be computed, once that has happened. Its requests have ended with an error.
        begin_step: called with the requests of all steps that are begun and not committed, before one more is, and
            before one is waited for.
        clock: seconds that never go back; on one machine, all processes have the same.
        facts: of the newest step.
        fail_points: where something can be made to go wrong.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        grammars: GrammarCompiler | None = None,
        news: Callable[[], Sequence[Shelved]] = tuple,
        fail_points: FailPoints | None = None,
        expert_rows: Callable[[], tuple[int, int]] = lambda: (0, 0),
        partners: Partners | None = None,
    ) -> None:
        """Without `grammars`, no request can have one; `news` are of the shelves, since they were asked for before.

        Without `partners`, all prompts are computed here.
        """
        self.scheduler = scheduler
        self._executor = executor
        self._grammars = grammars
        self._news = news
        self._expert_rows = expert_rows
        self._pulling = Pulling(scheduler.cache, partners)
        self.failure: EngineError | None = None
        self.fail_points = fail_points or FailPoints()
        self.begin_step: Callable[[frozenset[int]], None] | None = None
        self.clock: Callable[[], float] = time.monotonic
        self.facts = StepFacts()
        # Steps that are not committed, the oldest first.
        self._begun: deque[_Begun] = deque()
        self._said_full = False

    @property
    def executor(self) -> Executor:
        """The one that computes each plan of the scheduler."""
        return self._executor

    def needs_preparation(self, request: Request) -> bool:
        """Whether `find` or `prepare` would take a while; `add` or `refuse` is then to follow."""
        if self._pulling.expects(request):
            return True
        grammar = request.sampling.grammar
        if grammar is None:
            return False
        return self._grammars is None or bool(request.output) or not self._grammars.has(grammar)

    def use_idle_time(self) -> bool:
        """Do a piece of what no request has needed so far and some will; whether more is left."""
        if self._grammars is not None:
            self._grammars.load()
        return self._executor.use_idle_time()

    def find(self, request: Request) -> None:
        """Ask the replica that has computed the request's prompt, if one has, on any thread."""
        self._pulling.find(request)

    def prepare(self, request: Request) -> None:
        """Make the request's grammar ready, on any thread; raises RequestError where that is impossible."""
        grammar = request.sampling.grammar
        if grammar is None:
            return
        if self._grammars is None:
            raise InvalidParameter(grammar.param, "this engine cannot hold its output to a grammar.")
        self._grammars.compile(grammar)
        if request.output:
            self._grammars.check(grammar, request.output)

    def add(self, request: Request) -> None:
        """Queue a request; raises RequestError where it could never be served."""
        self._pulling.begin(request)
        try:
            self.scheduler.add(request)
        except RequestError:
            self._pulling.end(request.request_id)
            raise

    def refuse(self, request_id: int) -> None:
        """A request that needed preparation is not queued: what was found for it, or will be, is given back."""
        self._pulling.end(request_id)

    def abort(self, request_id: int) -> list[SampleOutput]:
        """End a request now; its last events."""
        self._pulling.end(request_id)
        return self.scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self.scheduler.has_work

    @property
    def is_computing(self) -> bool:
        """Whether a step was begun and is not committed."""
        return bool(self._begun)

    @property
    def has_begun(self) -> bool:
        """Whether a step was begun and is not committed, or a transfer is to begin with the next one."""
        return self.is_computing or self.scheduler.cache.transfers.any_queued

    def step(self) -> list[SampleOutput]:
        """Commit one step, having begun all that can be under way meanwhile.

        Where the executor raises, the requests that have a row in the step end with an error and the engine goes on;
        an interrupt is raised again once all that was begun is committed like this.
        """
        began, planning = self.clock(), 0.0
        told = False
        if news := self._news():
            self.scheduler.cache.shelves.told(news)
        while self._can_begin:
            started = self.clock()
            plan = self.scheduler.plan(started)
            planning += self.clock() - started
            if plan is None:
                break
            self._begin(plan)
            told = True
        if not self._begun:
            raise EngineError("Requests are waiting but nothing can be computed: the scheduler is stuck.")
        if not told:
            self._tell()
        return self._commit_oldest(began, planning)

    def finish_step(self) -> list[SampleOutput]:
        """Commit the oldest step that was begun, and begin none."""
        self._tell()
        return self._commit_oldest(self.clock(), 0.0)

    @property
    def _can_begin(self) -> bool:
        """Whether one more step can be under way: beside one that is computed here, or has failed, none can."""
        if not self._begun:
            return True
        if len(self._begun) >= self.scheduler.config.max_outstanding:
            return False
        newest = self._begun[-1].handle
        return newest is not None and newest.under_way

    def _begin(self, plan: StepPlan) -> None:
        step = _Begun(plan, self.scheduler.requests_of(plan) if self.begin_step is not None else frozenset())
        self._begun.append(step)
        self._tell()
        try:
            self.fail_points.passed("engine.step")
            step.handle = self._executor.execute(plan)
        except Exception as error:
            # Told when it is its turn to be committed: those before it may have been computed.
            step.error = error
        except BaseException as interrupt:
            self._end_all(interrupt)
            raise

    def _tell(self) -> None:
        """Say which requests are being computed: whatever ends this process now, one of them is the reason."""
        if self.begin_step is not None:
            self.begin_step(frozenset().union(*(step.requests for step in self._begun)))

    def _commit_oldest(self, began: float, planning: float) -> list[SampleOutput]:
        """Wait for the oldest step and commit it.

        The time since `began` is told as the step's own, `planning` seconds of it for planning. So the times that steps
        tell add up to the time that has passed, however many are under way.
        """
        step = self._begun[0]
        try:
            result = step.result()
        except StepOutOfMemory as error:
            # What was computed before stands, and a smaller step may fit.
            logger.exception("step %d ran out of memory", step.plan.number)
            result = failed_step(step.plan, error)
        except Exception as error:
            logger.exception("step %d failed", step.plan.number)
            result = failed_step(step.plan, error)
            self.failure = EngineError(f"A step failed ({type(error).__name__}: {error}).")
        except BaseException as interrupt:
            self._end_all(interrupt)
            raise
        self._begun.popleft()
        computed = self.clock()
        outputs = self.scheduler.commit(step.plan, result)
        for output in outputs:
            self._pulling.end(output.request_id)
        self.facts = replace(
            self.scheduler.facts,
            began=began,
            schedule=planning + self.clock() - computed,
            draft=result.drafting_seconds,
            execute=computed - began - planning - result.sampling_seconds - result.drafting_seconds,
            sample=result.sampling_seconds,
        )
        if self.facts.not_swapped and not self._said_full:
            self._said_full = True
            logger.warning(
                "--swap-space had no room for a preempted request, which is computed again; "
                "penstock_preemptions_not_swapped_total counts how often that happens."
            )
        return outputs

    def _end_all(self, interrupt: BaseException) -> None:
        """End the requests of all steps that were begun."""
        while self._begun:
            plan = self._begun.popleft().plan
            self.scheduler.commit(plan, failed_step(plan, interrupt))

    def check(self) -> str | None:
        """What is wrong with the engine's books; None where all is well."""
        try:
            self.scheduler.check()
        except RuntimeError as problem:
            return str(problem)
        return None

    def snapshot(self) -> LoadSnapshot:
        """The engine's load after the newest step."""
        rows, busiest = self._expert_rows()
        return replace(self.scheduler.snapshot(), expert_rows=rows, expert_rows_busiest=busiest)
