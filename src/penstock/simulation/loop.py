"""The loop that plays requests through a scheduler: plan → execute → commit, on a clock that steps move."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.core.events import SampleOutput
from penstock.core.plan import Gained, SampleResult, StepPlan, StepResult, TransferResult
from penstock.core.request import Request
from penstock.scheduler.scheduler import Scheduler

# Behind all ids that made-up prompts have.
_OWN = 2**31


class Arrival(NamedTuple):
    """A request, and when it comes, in seconds on the simulated clock; `session` is what its conversation is called."""

    at: float
    request: Request
    session: str | None = None


class PlayedStep(NamedTuple):
    """A step that was committed.

    Attributes:
        began, ended: in seconds on the simulated clock.
        outputs: what requests gained by it.
    """

    plan: StepPlan
    began: float
    ended: float
    outputs: list[SampleOutput]


def play(
    scheduler: Scheduler,
    arrivals: Iterable[Arrival],
    execute: Callable[[StepPlan], StepResult],
    *,
    now: float = 0.0,
) -> Iterator[PlayedStep]:
    """The steps in which a scheduler serves requests that come in ascending order of time, from `now` on.

    `execute` answers a plan; the seconds of its result move the clock. Requests may be added between two steps. Raises
    RequestError where a request can never be served, RuntimeError where requests wait and nothing can be computed.
    """
    coming = iter(arrivals)
    following = next(coming, None)
    while following is not None or scheduler.has_work:
        while following is not None and (following.at <= now or not scheduler.has_work):
            now = max(now, following.at)
            scheduler.add(following.request)
            following = next(coming, None)
        plan = scheduler.plan(now)
        if plan is None:
            raise RuntimeError("requests are waiting but nothing can be computed: the scheduler is stuck")
        result = execute(plan)
        outputs = scheduler.commit(plan, result)
        began, now = now, now + result.seconds
        yield PlayedStep(plan, began, now, outputs)


def one_token_each(plan: StepPlan, seconds: float = 0.0, token: int = 0) -> StepResult:
    """The answer of a machine on which only lengths matter: the same token a step for each sample, copies done."""
    return _answer(plan, seconds, lambda _sequence: token)


def own_tokens(plan: StepPlan, seconds: float, first: int = 0) -> StepResult:
    """The same with a token for each sequence, so that no output is another's, and none shares its keys and values.

    `first` tells schedulers apart, whose sequences have the same numbers.
    """
    return _answer(plan, seconds, lambda sequence: _OWN + (first + sequence) % _OWN)


def _answer(plan: StepPlan, seconds: float, token: Callable[[int], int]) -> StepResult:
    sampled = [sequence for row in plan.rows for sequence in row.samples]
    samples = tuple([SampleResult(sequence, Gained([token(sequence)] * plan.steps)) for sequence in sampled])
    copied = tuple([TransferResult(each.id, True) for each in plan.transfers if each.shelf is None])
    return StepResult(plan.number, samples, seconds, transfers=copied)
