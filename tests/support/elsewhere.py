"""The scripted executor as a device beside the engine's loop."""

from collections.abc import Mapping
from typing import Any

from penstock.core.config import CacheConfig
from penstock.core.plan import StepPlan, StepResult
from penstock.engine.core import EngineCore
from penstock.scheduler.build import build_scheduler
from support.made_up_model import kv_spec
from support.scripted import ScriptedExecutor
from support.simulation import config

SPEC = kv_spec(4, (None,))
BLOCKS = 40


class Elsewhere:
    """The scripted executor as a device beside the loop, which is waited for by a clock of its own.

    Attributes:
        events: ("begin", n) and ("result", n), in order.
        now: rises by 1 while a step is begun and by 10 while one is waited for.
        failing: what is raised at such an event.
        under_way: whether steps are, once they were begun.
    """

    def __init__(self, failing: Mapping[tuple[str, int], BaseException] | None = None) -> None:
        self._executor = ScriptedExecutor(SPEC, BLOCKS)
        self.failing = failing or {}
        self.events: list[tuple[str, int]] = []
        self.now = 0.0
        self.under_way = True

    def use_idle_time(self) -> bool:
        return False

    def pass_event(self, what: str, number: int, seconds: float) -> None:
        self.events.append((what, number))
        self.now += seconds
        if (what, number) in self.failing:
            raise self.failing[what, number]

    def execute(self, plan: StepPlan) -> "Handle":
        answer = self._executor.execute(plan)
        self.pass_event("begin", plan.number, 1.0)
        return Handle(self, answer)


class Handle:
    def __init__(self, executor: Elsewhere, answer: StepResult) -> None:
        self._executor, self._answer = executor, answer
        self.under_way = executor.under_way

    def result(self) -> StepResult:
        self._executor.pass_event("result", self._answer.number, 10.0)
        return self._answer


def core_beside(executor: Elsewhere, **options: Any) -> EngineCore:
    limits = config(**({"max_num_seqs": 2, "budget": 32, "max_outstanding": 2} | options))
    scheduler = build_scheduler(limits, CacheConfig(SPEC, BLOCKS))
    core = EngineCore(scheduler, executor)
    core.clock = lambda: executor.now
    return core
