"""Steps of many sizes are measured: on a made-up machine whose clock is known."""

import pytest

from penstock.bench.steps import CASES, Engine, StepCase, means, measure_steps, variation
from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.plan import StepPlan, StepResult
from penstock.planning.latency import MeasuredStep, Rows
from penstock.scheduler.build import build_scheduler
from penstock.simulation.loop import one_token_each
from support.made_up_model import kv_spec


class MadeUp:
    """A machine on which a token of a prompt takes 10 ms, and a step 1 ms beside."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def execute(self, plan: StepPlan) -> StepResult:
        seconds = 1e-3 + 10e-3 * sum(row.count for row in plan.rows if row.count > 1)
        self.now += seconds
        return one_token_each(plan, seconds)


def measured(cases: tuple[StepCase, ...], seconds: float) -> list[tuple[StepCase, list[MeasuredStep]]]:
    machine = MadeUp()
    limits = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=256, max_model_len=2048)
    scheduler = build_scheduler(limits, CacheConfig(kv_spec(16), 4000))
    return list(measure_steps(Engine(scheduler, machine.execute, 100), cases, seconds, machine))


def test_a_case_has_its_prompts_and_its_decodes() -> None:
    (_, steps), *again = measured((StepCase(2, 32),), 100.0)
    prompts, *decoding = steps
    decodes = decoding[0]
    assert {step.rows for step in decoding} == {decodes.rows} and len(decoding) == 13
    assert prompts.rows.chunks == ((0.0, 32.0), (0.0, 32.0)) and prompts.seconds == pytest.approx(0.641)
    assert (decodes.rows.decodes, decodes.seconds) == (2.0, pytest.approx(1e-3))
    assert 33 < decodes.rows.context < 46
    assert [[step.rows for step in found] for _, found in again] == 4 * [[step.rows for step in steps]]


def test_long_prompts_are_measured_chunk_by_chunk() -> None:
    ((_, steps), *_) = measured((StepCase(1, 600),), 7.0)
    assert [step.rows.chunks for step in steps[:3]] == [((0.0, 256.0),), ((256.0, 256.0),), ((512.0, 88.0),)]


def test_a_long_prompt_comes_while_others_decode() -> None:
    ((_, steps), *_) = measured((StepCase(1, 600, 3),), 20.0)
    prompts, decodes = [step for step in steps if step.rows.chunks], steps[-1]
    beside = [step.rows for step in prompts if step.rows.decodes]
    assert [step.chunks for step in beside] == [((0.0, 253.0),), ((253.0, 253.0),), ((506.0, 94.0),)]
    assert all(step.decodes == 3 and step.context > 16 for step in beside)
    assert decodes.rows.decodes == 4.0


def test_what_there_is_no_time_for_is_left_out() -> None:
    short = {case for case, _ in measured(CASES, 3.0)}
    long = {case for case, _ in measured(CASES, 1e6)}
    assert long == set(CASES) and StepCase(1, 16) in short and StepCase(8, 256) not in short
    # However slow the machine is, there is something to calibrate from.
    assert [case for case, _ in measured(CASES, 1e-9)] == list(CASES[:4])


def of_kind(rows: Rows, *seconds: float) -> list[MeasuredStep]:
    return [MeasuredStep(rows, each) for each in seconds]


def test_each_kind_of_step_has_its_mean_but_for_what_was_held_up() -> None:
    one, other = Rows(1.0, 10.0), Rows(2.0, 10.0)
    found = means([*of_kind(one, 3.0, 1.0, 9.0, 2.0, 4.0), *of_kind(other, 5.0)])
    assert found == [MeasuredStep(one, 2.5), MeasuredStep(other, 5.0)]


def test_how_steps_vary_is_told_in_multiples_of_their_kind() -> None:
    one, other = Rows(1.0, 10.0), Rows(2.0, 10.0)
    even = [*of_kind(one, *[1.0] * 20), *of_kind(other, *[3.0] * 20)]
    assert variation(even) == (1.0,) * 32
    # One in ten is held up.
    uneven = [*of_kind(one, *[1.0] * 36, *[5.0] * 4), *of_kind(other, *[2.0] * 36, *[10.0] * 4)]
    mean = (29 * 1.0 + 3 * 5.0) / 32
    assert variation(uneven) == pytest.approx([1.0 / mean] * 29 + [5.0 / mean] * 3)
    # Too few to say.
    assert variation(of_kind(one, *[1.0] * 20)) == () and variation(40 * of_kind(one)) == ()
