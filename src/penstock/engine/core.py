"""The engine's loop without its surroundings: requests in, one step at a time, outputs out."""

from typing import Protocol

from penstock.core.errors import EngineError
from penstock.core.events import LoadSnapshot, SampleOutput
from penstock.core.plan import StepPlan, StepResult
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
        """One step. `now` is in seconds, on a clock that never goes back."""
        plan = self.scheduler.plan(now)
        if plan is None:
            raise EngineError("Requests are waiting but nothing can be computed: the scheduler is stuck.")
        result = self._executor.execute(plan).result()
        return self.scheduler.commit(plan, result, now)

    def snapshot(self) -> LoadSnapshot:
        """The engine's load after the newest step."""
        return self.scheduler.snapshot()
