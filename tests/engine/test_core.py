"""The loop when the executor fails: who was in the step ends, everybody else goes on."""

import pytest

from penstock.cache.manager import KVCache
from penstock.core.plan import StepPlan
from penstock.engine.core import EngineCore, StepHandle
from penstock.scheduler.scheduler import Scheduler
from support.scripted import ScriptedExecutor, kv_spec
from support.simulation import config, make_request, prompt


class Failing:
    """The scripted executor, raising where it is told to."""

    def __init__(self, executor: ScriptedExecutor, failures: dict[int, BaseException]) -> None:
        self._executor = executor
        self._failures = failures

    def execute(self, plan: StepPlan) -> StepHandle:
        if plan.number in self._failures:
            raise self._failures[plan.number]
        answer = self._executor.execute(plan)

        class Done:
            def result(self) -> object:
                return answer

        return Done()  # type: ignore[return-value]


def core_with(failures: dict[int, BaseException]) -> EngineCore:
    spec = kv_spec(4, (None,))
    scheduler = Scheduler(config(max_num_seqs=1, budget=8), KVCache(spec, 40, prefix_caching=False))
    return EngineCore(scheduler, Failing(ScriptedExecutor(spec, 40), failures))


def test_an_error_ends_the_requests_of_the_step_and_the_next_are_served() -> None:
    core = core_with({0: RuntimeError("out of memory at 0x1234")})
    core.add(make_request(0, prompt(20), 3, n=2))
    outputs = core.step(0.0)
    assert {(output.sample_index, output.finish) for output in outputs} == {(0, "error"), (1, "error")}
    assert all("RuntimeError" in str(output.error) and "0x1234" not in str(output.error) for output in outputs)
    core.scheduler.check()
    assert core.snapshot().blocks_used == 0
    assert not core.has_work


def test_an_interrupt_is_raised_and_leaves_a_core_that_works() -> None:
    core = core_with({0: KeyboardInterrupt()})
    core.add(make_request(0, prompt(5), 3))
    with pytest.raises(KeyboardInterrupt):
        core.step(0.0)
    assert not core.has_work
    core.scheduler.check()
