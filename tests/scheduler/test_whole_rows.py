"""Texts of an encoder: each is computed in one step, in order, and nothing of it is kept."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.manager import KVCache
from penstock.core.config import SchedulerConfig
from penstock.core.kv import build_kv_spec
from penstock.core.plan import Gained, SampleResult, StepPlan, StepResult
from penstock.core.request import BACKGROUND_PRIORITY, Request, Standing
from penstock.core.sampling import SamplingParams
from penstock.scheduler.scheduler import Scheduler

VECTOR = Gained([], embedding=b"vector")


def make_scheduler(budget: int = 64, rows: int = 8) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=budget, max_model_len=budget)
    return Scheduler(config, KVCache(build_kv_spec([], "float32"), 1, prefix_caching=False))


def text(number: int, length: int, **standing: object) -> Request:
    return Request(
        request_id=number,
        prompt_token_ids=[5] * length,
        sampling=SamplingParams(temperature=0.0, seed=0, max_tokens=1),
        standing=Standing(**standing),  # type: ignore[arg-type]
        pooling="mean",
    )


def step(scheduler: Scheduler, now: float = 0.0) -> tuple[StepPlan, list[int]]:
    """Carry out a plan; returns it, and the requests that have ended by it."""
    plan = scheduler.plan(now)
    assert plan is not None
    results = tuple(SampleResult(row.sequence, VECTOR) for row in plan.rows)
    outputs = scheduler.commit(plan, StepResult(plan.number, results, 0.01))
    assert all(output.gained.ending is not None and output.gained.embedding for output in outputs)
    return plan, [output.request_id for output in outputs]


def test_texts_are_whole_and_in_order() -> None:
    scheduler = make_scheduler()
    for number, length in enumerate((30, 30, 30, 4, 64, 1)):
        scheduler.add(text(number, length))
    steps = [step(scheduler) for _ in range(4)]
    assert [ended for _, ended in steps] == [[0, 1], [2, 3], [4], [5]]
    assert all(row.start == 0 and row.pooled == (0, row.count) for plan, _ in steps for row in plan.rows)
    assert not scheduler.has_work
    scheduler.check()


def test_a_text_does_not_wait_behind_one_of_the_background() -> None:
    scheduler = make_scheduler()
    scheduler.add(text(0, 60, priority=BACKGROUND_PRIORITY))
    scheduler.add(text(1, 60))
    assert [step(scheduler)[1] for _ in range(2)] == [[1], [0]]


def test_steps_of_the_background_are_short() -> None:
    scheduler = make_scheduler(budget=2048)
    for number, length in enumerate((200, 200, 200, 600, 512, 1)):
        scheduler.add(text(number, length, priority=BACKGROUND_PRIORITY))
    assert [step(scheduler)[1] for _ in range(5)] == [[0, 1], [2], [3], [4], [5]]


def test_a_higher_priority_goes_first() -> None:
    scheduler = make_scheduler()
    scheduler.add(text(0, 60))
    scheduler.add(text(1, 60, priority=-1))
    assert [step(scheduler)[1] for _ in range(2)] == [[1], [0]]


def test_two_tenants_take_turns() -> None:
    scheduler = make_scheduler(budget=32)
    for number in range(8):
        scheduler.add(text(number, 16, tenant="many"))
    scheduler.add(text(8, 16, tenant="few"))
    assert 8 in [ended for _ in range(2) for ended in step(scheduler)[1]]


@pytest.mark.parametrize("rows", [1, 4])
@given(seed=st.integers(0, 2**32))
def test_random_texts(rows: int, seed: int) -> None:
    """Whatever comes and goes: no row is a part of a text, no step is longer than its budget, every text is reached."""
    luck, scheduler = random.Random(seed), make_scheduler(rows=rows)
    waiting: set[int] = set()
    for number in range(luck.randrange(1, 25)):
        standing = {"tenant": luck.choice("ab"), "priority": luck.choice((0, 0, 1, BACKGROUND_PRIORITY))}
        scheduler.add(text(number, luck.randrange(1, 65), **standing))
        waiting.add(number)
        if luck.random() < 0.1:
            gone = luck.choice(sorted(waiting))
            scheduler.abort(gone)
            waiting.discard(gone)
        if luck.random() < 0.4 and waiting:
            _check(scheduler, waiting)
    while waiting:
        _check(scheduler, waiting)
    assert not scheduler.has_work
    scheduler.check()


def _check(scheduler: Scheduler, waiting: set[int]) -> None:
    plan, ended = step(scheduler)
    assert plan.rows and sum(row.count for row in plan.rows) <= 64
    assert all(row.start == 0 and row.pooled == (0, row.count) and not row.blocks for row in plan.rows)
    assert len(ended) == len(plan.rows) and set(ended) <= waiting
    waiting.difference_update(ended)
