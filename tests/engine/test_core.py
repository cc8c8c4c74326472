"""The loop when the executor fails: who was in the step ends, everybody else goes on."""

import pytest

from penstock.cache.manager import KVCache
from penstock.core.errors import StepOutOfMemory
from penstock.core.plan import StepPlan
from penstock.core.sampling import SamplingParams
from penstock.engine.core import EngineCore, StepHandle
from penstock.scheduler.scheduler import Scheduler
from support.scripted import ScriptedExecutor, expected_output, kv_spec
from support.simulation import config, make_request, prompt

SPEC = kv_spec(4, (None,))


class Failing:
    """The scripted executor, losing the answer to some plans by raising."""

    def __init__(self, executor: ScriptedExecutor, failures: dict[int, BaseException]) -> None:
        self._executor = executor
        self._failures = failures

    def use_idle_time(self) -> None:
        """There is nothing that could wait."""

    def execute(self, plan: StepPlan) -> StepHandle:
        answer = self._executor.execute(plan)
        if plan.number in self._failures:
            raise self._failures[plan.number]

        class Done:
            def result(self) -> object:
                return answer

        return Done()  # type: ignore[return-value]


def core_with(failures: dict[int, BaseException]) -> EngineCore:
    scheduler = Scheduler(config(max_num_seqs=1, budget=8), KVCache(SPEC, 40, prefix_caching=False))
    return EngineCore(scheduler, Failing(ScriptedExecutor(SPEC, 40), failures))


def run(core: EngineCore) -> dict[int, list[int]]:
    """Step to the end; the tokens of each request."""
    tokens: dict[int, list[int]] = {}
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens.setdefault(output.request_id, []).extend(output.tokens)
    return tokens


def expected(length: int, start: int) -> list[int]:
    """What a request for three tokens comes to."""
    return expected_output(SPEC, prompt(length, start), SamplingParams(max_tokens=3, seed=0))[0]


def test_an_error_ends_the_requests_of_the_step_and_the_next_are_served() -> None:
    core = core_with({0: RuntimeError("out of memory at 0x1234")})
    core.add(make_request(0, prompt(20), 3, n=2))
    core.add(make_request(1, prompt(9, 50), 3))
    outputs = core.step()
    assert {(output.request_id, output.sample_index, output.finish) for output in outputs} == {
        (0, 0, "error"),
        (0, 1, "error"),
    }
    assert all("RuntimeError" in str(output.error) and "0x1234" not in str(output.error) for output in outputs)
    core.scheduler.check()
    assert core.snapshot().blocks_used == 0
    assert run(core) == {1: expected(9, 50)}


def test_where_memory_ends_the_step_ends_and_the_engine_goes_on() -> None:
    core = core_with({0: StepOutOfMemory("The GPU is full."), 2: RuntimeError("broken")})
    core.add(make_request(0, prompt(20), 3))
    core.add(make_request(1, prompt(9, 50), 3))
    (output,) = core.step()
    assert (output.request_id, output.finish, output.error) == (0, "error", "The GPU is full.")
    core.scheduler.check()
    # Only what could have spoiled more than the step is a failure of the engine.
    core.step()
    assert core.failure is None
    core.step()
    assert core.failure is not None


def test_an_interrupt_is_raised_and_leaves_a_core_that_works() -> None:
    core = core_with({0: KeyboardInterrupt()})
    core.add(make_request(0, prompt(5), 3))
    with pytest.raises(KeyboardInterrupt):
        core.step()
    assert not core.has_work
    core.scheduler.check()
    core.add(make_request(1, prompt(9, 50), 3))
    assert run(core) == {1: expected(9, 50)}
