"""The loop when steps are under way, and when the executor fails: who was in the step ends, everybody else goes on."""

import pytest

from penstock.core.config import CacheConfig
from penstock.core.errors import StepOutOfMemory
from penstock.core.plan import StepPlan
from penstock.core.sampling import SamplingParams
from penstock.engine.core import EngineCore, StepHandle
from penstock.scheduler.build import build_scheduler
from support.elsewhere import Elsewhere, core_beside
from support.endings import finish_of
from support.made_up_model import expected_output, kv_spec
from support.scripted import ScriptedExecutor
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
            under_way = False

            def result(self) -> object:
                return answer

        return Done()  # type: ignore[return-value]


def core_with(failures: dict[int, BaseException]) -> EngineCore:
    scheduler = build_scheduler(config(max_num_seqs=1, budget=8), CacheConfig(SPEC, 40, prefix_caching=False))
    return EngineCore(scheduler, Failing(ScriptedExecutor(SPEC, 40), failures))


def run(core: EngineCore) -> dict[int, list[int]]:
    """Step to the end; the tokens of each request."""
    tokens: dict[int, list[int]] = {}
    while core.has_work:
        for output in core.step():
            assert finish_of(output.gained) != "error"
            tokens.setdefault(output.request_id, []).extend(output.gained.tokens)
    return tokens


def expected(length: int, start: int) -> list[int]:
    """What a request for three tokens comes to."""
    return expected_output(SPEC, prompt(length, start), SamplingParams(max_tokens=3, seed=0))[0]


def test_an_error_ends_the_requests_of_the_step_and_the_next_are_served() -> None:
    core = core_with({0: RuntimeError("out of memory at 0x1234")})
    core.add(make_request(0, prompt(20), 3, n=2))
    core.add(make_request(1, prompt(9, 50), 3))
    outputs = core.step()
    assert {(output.request_id, output.sample_index, finish_of(output.gained)) for output in outputs} == {
        (0, 0, "error"),
        (0, 1, "error"),
    }
    assert all(
        "RuntimeError" in str(output.gained.ending.error) and "0x1234" not in str(output.gained.ending.error)
        for output in outputs
    )
    core.scheduler.check()
    assert core.snapshot().blocks_used == 0
    assert run(core) == {1: expected(9, 50)}


def test_where_memory_ends_the_step_ends_and_the_engine_goes_on() -> None:
    core = core_with({0: StepOutOfMemory("The GPU is full."), 2: RuntimeError("broken")})
    core.add(make_request(0, prompt(20), 3))
    core.add(make_request(1, prompt(9, 50), 3))
    (output,) = core.step()
    assert (output.request_id, finish_of(output.gained), output.gained.ending.error) == (
        0,
        "error",
        "The GPU is full.",
    )
    assert output.gained.ending.code == StepOutOfMemory.code
    core.scheduler.check()
    # Only what could have spoiled more than the step is a failure of the engine.
    core.step()
    assert core.failure is None
    (output,) = core.step()
    assert core.failure is not None and output.gained.ending.code is None


def test_samples_that_never_forked_fail_as_their_prompt_did() -> None:
    core = core_with({0: StepOutOfMemory("The GPU is full.")})
    core.add(make_request(0, prompt(20), 3, n=2))
    assert [(each.sample_index, each.gained.ending.code) for each in core.step()] == [
        (0, "out_of_memory"),
        (1, "out_of_memory"),
    ]


def test_an_interrupt_is_raised_and_leaves_a_core_that_works() -> None:
    core = core_with({0: KeyboardInterrupt()})
    core.add(make_request(0, prompt(5), 3))
    with pytest.raises(KeyboardInterrupt):
        core.step()
    assert not core.has_work
    core.scheduler.check()
    core.add(make_request(1, prompt(9, 50), 3))
    assert run(core) == {1: expected(9, 50)}


def test_what_failed_is_not_in_the_prefix_cache() -> None:
    scheduler = build_scheduler(config(max_num_seqs=1, budget=64), CacheConfig(SPEC, 40))
    core = EngineCore(scheduler, Failing(ScriptedExecutor(SPEC, 40), {0: RuntimeError("nothing was computed")}))
    core.add(make_request(0, prompt(20), 3))
    assert [finish_of(output.gained) for output in core.step()] == ["error"]
    assert core.snapshot().blocks_cached == 0
    core.scheduler.check()
    core.add(make_request(1, prompt(20), 3))
    assert run(core) == {1: expected(20, 0)}


def test_a_step_is_begun_before_the_one_before_is_waited_for() -> None:
    executor = Elsewhere()
    core = core_beside(executor)
    core.add(make_request(0, prompt(9), 3))
    assert run(core) == {0: expected(9, 0)}
    assert executor.events == [
        ("begin", 0),
        ("begin", 1),
        ("result", 0),
        ("begin", 2),
        ("result", 1),
        ("result", 2),
    ]


def test_nothing_is_begun_beside_a_step_that_is_computed_here() -> None:
    executor = Elsewhere()
    executor.under_way = False
    core = core_beside(executor)
    core.add(make_request(0, prompt(9), 3))
    assert run(core) == {0: expected(9, 0)}
    assert executor.events == [(what, number) for number in range(3) for what in ("begin", "result")]


def test_times_add_up_whatever_is_under_way() -> None:
    executor = Elsewhere()
    core = core_beside(executor)
    core.add(make_request(0, prompt(9), 4))
    facts = []
    while core.has_work:
        core.step()
        facts.append(core.facts)
    # Two are begun first, then one while one is waited for, and none in the end.
    assert [step.execute for step in facts] == [12.0, 11.0, 11.0, 10.0]
    assert [step.began for step in facts] == [0.0, 12.0, 23.0, 34.0]
    assert sum(step.seconds for step in facts) == executor.now
    assert [step.sampled for step in facts] == [1, 1, 1, 1]


def test_whoever_is_under_way_is_told_before_anything_is_begun_or_waited_for() -> None:
    executor = Elsewhere()
    core = core_beside(executor, max_num_seqs=1)
    told: list[tuple[set[int], int]] = []
    core.begin_step = lambda requests: told.append((set(requests), len(executor.events)))
    core.add(make_request(0, prompt(9), 1))
    core.add(make_request(1, prompt(9, 50), 1))
    assert run(core) == {0: expected_output(SPEC, prompt(9), SamplingParams(max_tokens=1, seed=0))[0]} | {
        1: expected_output(SPEC, prompt(9, 50), SamplingParams(max_tokens=1, seed=0))[0]
    }
    assert executor.events == [("begin", 0), ("result", 0), ("begin", 1), ("result", 1)]
    # Nothing can be planned beside the first, whose row the second waits for.
    assert told == [({0}, 0), ({1}, 2)]

    told.clear()
    core.add(make_request(2, prompt(9), 3))
    run(core)
    assert [requests for requests, _ in told] == [{2}] * 4, "the last time, nothing is begun and one is waited for"


def test_a_result_that_is_lost_ends_its_requests_and_their_rows_in_the_next_step_are_void() -> None:
    executor = Elsewhere({("result", 1): RuntimeError("lost")})
    core = core_beside(executor, max_num_seqs=3)
    core.add(make_request(0, prompt(9), 3))
    outputs = core.step()
    assert core.failure is None and [len(output.gained.tokens) for output in outputs] == [1]
    core.add(make_request(1, prompt(9, 50), 3))
    (output,) = core.step()
    assert executor.events[-2:] == [("begin", 2), ("result", 1)], "both have a row in the step that is under way"
    assert (output.request_id, finish_of(output.gained)) == (0, "error") and core.failure is not None
    core.scheduler.check()
    assert run(core) == {1: expected(9, 50)}
    assert core.snapshot().blocks_used == 0


def test_a_step_that_cannot_be_begun_is_told_after_those_before_it() -> None:
    executor = Elsewhere({("begin", 1): RuntimeError("no memory")})
    core = core_beside(executor, max_num_seqs=3)
    core.add(make_request(0, prompt(9), 3))
    (first,) = core.step()
    assert finish_of(first.gained) is None and len(first.gained.tokens) == 1 and core.failure is None
    (second,) = core.step()
    assert (finish_of(second.gained), second.gained.tokens) == ("error", []) and core.failure is not None
    assert executor.events == [("begin", 0), ("begin", 1), ("result", 0)], "nothing is begun behind it"
    core.add(make_request(1, prompt(9, 50), 3))
    assert run(core) == {1: expected(9, 50)}


@pytest.mark.parametrize("event", [("begin", 1), ("result", 0), ("begin", 2), ("result", 1)])
def test_an_interrupt_ends_all_that_is_under_way(event: tuple[str, int]) -> None:
    executor = Elsewhere({event: KeyboardInterrupt()})
    core = core_beside(executor)
    core.add(make_request(0, prompt(5), 4))
    with pytest.raises(KeyboardInterrupt):
        run(core)
    assert not core.has_work and not core.is_computing
    core.scheduler.check()
    core.add(make_request(1, prompt(9, 50), 3))
    assert run(core) == {1: expected(9, 50)}


def test_what_was_begun_can_be_finished_alone() -> None:
    executor = Elsewhere()
    core = core_beside(executor)
    core.add(make_request(0, prompt(9), 4))
    core.step()
    assert core.is_computing
    assert [len(output.gained.tokens) for output in core.finish_step()] == [1]
    assert not core.is_computing and core.has_work
    assert executor.events == [("begin", 0), ("begin", 1), ("result", 0), ("result", 1)]


def test_that_there_was_no_room_to_swap_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = build_scheduler(config(3, 32), CacheConfig(SPEC, 10, prefix_caching=False, swap_blocks=2))
    core = EngineCore(scheduler, Failing(ScriptedExecutor(SPEC, 10, swap_blocks=2), {}))
    for number in range(3):
        core.add(make_request(number, prompt(4, 50 * number), 24))
    refused = 0
    while core.has_work:
        core.step()
        refused += core.facts.not_swapped
    assert refused > 1
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "--swap-space had no room for a preempted request"
    ]
