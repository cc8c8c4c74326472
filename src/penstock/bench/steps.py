"""How long single steps of an engine take, of many sizes: what calibrations are made from."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.core.plan import StepPlan, StepResult
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.planning.latency import MeasuredStep, Rows
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.loop import Arrival, play
from penstock.simulation.times import rows_of

# Steps that decode, of each case; their median is taken, and the mean of their contexts.
DECODES = 12
# How often each case is measured at most.
_ROUNDS = 5


class StepCase(NamedTuple):
    """Requests that begin together: how many, and the tokens of each prompt."""

    rows: int
    prompt: int


# From the cheapest on.
CASES = (
    StepCase(1, 16),
    StepCase(1, 64),
    StepCase(2, 32),
    StepCase(4, 32),
    StepCase(8, 16),
    StepCase(1, 256),
    StepCase(16, 16),
    StepCase(4, 128),
    StepCase(32, 16),
    StepCase(1, 768),
    StepCase(16, 64),
    StepCase(1, 1536),
    StepCase(8, 256),
    StepCase(32, 64),
)


class Engine(NamedTuple):
    """What is measured: a scheduler, what carries out its plans, and ids below which tokens are valid."""

    scheduler: Scheduler
    execute: Callable[[StepPlan], StepResult]
    vocab_size: int


def measure_steps(
    engine: Engine, cases: tuple[StepCase, ...], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[StepCase, list[MeasuredStep]]]:
    """Each case with its steps: those with prompts one by one, and one for all that decode; again while there is time.

    A case that would end behind `seconds`, as the ones before it say, is left out.
    """
    source, tokens = random.Random(0), 0
    _run(engine, StepCase(2, 8), source, clock)
    began = clock()
    for case in cases * _ROUNDS:
        passed, wanted = clock() - began, case.rows * (case.prompt + DECODES)
        if tokens and passed + wanted * passed / tokens > seconds:
            continue
        yield case, _run(engine, case, source, clock)
        tokens += wanted


def medians(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Each kind of step once, with the median of its times."""
    times: dict[Rows, list[float]] = {}
    for step in steps:
        times.setdefault(step.rows, []).append(step.seconds)
    return [MeasuredStep(rows, statistics.median(found)) for rows, found in times.items()]


def _run(engine: Engine, case: StepCase, source: random.Random, clock: Callable[[], float]) -> list[MeasuredStep]:
    arrivals = [
        Arrival(
            0.0,
            Request(
                request_id=number,
                prompt_token_ids=[source.randrange(engine.vocab_size) for _ in range(case.prompt)],
                sampling=SamplingParams(max_tokens=DECODES + 2, temperature=0.0, ignore_eos=True, seed=0),
            ),
        )
        for number in range(case.rows)
    ]
    found: list[MeasuredStep] = []
    decodes: list[MeasuredStep] = []
    before = clock()
    for step in play(engine.scheduler, arrivals, engine.execute):
        now = clock()
        measured = MeasuredStep(rows_of(step.plan), now - before)
        alone = not measured.rows.chunks and measured.rows.decodes == case.rows
        (decodes if alone else found).append(measured)
        before = now
    if decodes:
        context = statistics.fmean(step.rows.context for step in decodes)
        taken = statistics.median(step.seconds for step in decodes)
        found.append(MeasuredStep(Rows(float(case.rows), context), taken))
    return found
