"""The loop that plays requests through the scheduler: when steps are, and what comes of them."""

import pytest

from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.errors import RequestError
from penstock.core.plan import StepPlan, StepResult
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.loop import Arrival, one_token_each, play
from support.made_up_model import kv_spec
from support.simulation import config, make_request, prompt


def scheduler(limits: SchedulerConfig | None = None, blocks: int = 100, swap_blocks: int = 0) -> Scheduler:
    return build_scheduler(limits or config(), CacheConfig(kv_spec(4), blocks, swap_blocks=swap_blocks))


def a_second_each(plan: StepPlan) -> StepResult:
    return one_token_each(plan, 1.0)


def test_requests_come_at_their_times_and_steps_move_the_clock() -> None:
    arrivals = [
        Arrival(at, make_request(number, prompt(4, 10 * number), 2)) for number, at in enumerate([0.5, 1.0, 9.0])
    ]
    steps = list(play(scheduler(), arrivals, a_second_each))
    # The second comes while the first is computed; before the third, nothing is left to do.
    assert [(step.began, step.ended) for step in steps] == [
        (0.5, 1.5),
        (1.5, 2.5),
        (2.5, 3.5),
        (9.0, 10.0),
        (10.0, 11.0),
    ]
    gained = [[output.request_id for output in step.outputs] for step in steps]
    assert gained == [[0], [0, 1], [1], [2], [2]]
    assert [step.plan.number for step in steps] == [0, 1, 2, 3, 4]


def test_requests_may_be_added_between_two_steps() -> None:
    books = scheduler()
    books.add(make_request(0, prompt(4), 1))
    ended = []
    for step in play(books, [], a_second_each, now=5.0):
        ended += [(output.request_id, step.ended) for output in step.outputs]
        if len(ended) < 3:
            books.add(make_request(len(ended), prompt(4), 1))
    assert ended == [(0, 6.0), (1, 7.0), (2, 8.0)]


def test_what_is_swapped_out_comes_back() -> None:
    """A machine on which only lengths matter has done each transfer with its step."""
    books = scheduler(config(3, 32), blocks=10, swap_blocks=20)
    arrivals = [Arrival(0.0, make_request(number, prompt(4, 50 * number), 24)) for number in range(3)]
    tokens, swapped_out, swapped_in = [0, 0, 0], 0, 0
    for step in play(books, arrivals, a_second_each):
        swapped_out += len(step.plan.pairs("pool", "host"))
        swapped_in += len(step.plan.pairs("host", "pool"))
        for output in step.outputs:
            tokens[output.request_id] += len(output.gained.tokens)
    load = books.snapshot()
    assert tokens == [24, 24, 24]
    # What the prefix cache still has is not brought back.
    assert load.preemptions > 0 and 0 < swapped_in <= swapped_out


def test_a_request_that_can_never_be_served_is_told() -> None:
    with pytest.raises(RequestError, match="4097"):
        list(play(scheduler(), [Arrival(0.0, make_request(0, prompt(4097), 1))], a_second_each))
