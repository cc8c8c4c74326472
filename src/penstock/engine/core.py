"""The engine's loop without its surroundings: requests in, one step at a time, outputs out."""

import logging
from typing import Protocol

from penstock.core.errors import EngineError
from penstock.core.events import LoadSnapshot, SampleOutput
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


logger = logging.getLogger("penstock.engine")


def failed_step(plan: StepPlan, cause: BaseException) -> StepResult:
    """The answer to a plan that could not be computed: every sequence with a row in it fails."""
    message = f"The computation of this step failed ({type(cause).__name__}); the engine's log has the details."
    sequences = {sequence for row in plan.rows for sequence in (row.sequence, *row.samples)}
    return StepResult(
        plan.number, tuple(SampleResult(sequence, [], "error", error=message) for sequence in sorted(sequences))
    )


class EngineCore:
    """Plan → execute → commit, with the executor injected."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self.scheduler = scheduler
        self._executor = executor

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

    def step(self, now: float) -> list[SampleOutput]:
        """One step. `now` is in seconds, on a clock that never goes back.

        Where the executor raises, the requests that have a row in the step end with an error and the engine goes on;
        an interrupt is raised again once the step is committed like this.
        """
        plan = self.scheduler.plan(now)
        if plan is None:
            raise EngineError("Requests are waiting but nothing can be computed: the scheduler is stuck.")
        try:
            result = self._executor.execute(plan).result()
        except Exception as error:
            logger.exception("step %d failed", plan.number)
            result = failed_step(plan, error)
        except BaseException as interrupt:
            self.scheduler.commit(plan, failed_step(plan, interrupt), now)
            raise
        return self.scheduler.commit(plan, result, now)

    def snapshot(self) -> LoadSnapshot:
        """The engine's load after the newest step."""
        return self.scheduler.snapshot()
