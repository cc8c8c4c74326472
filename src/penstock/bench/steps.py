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
from penstock.scheduler.pace import ENOUGH_PROMPT
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.loop import Arrival, play
from penstock.simulation.times import rows_of

# Steps that decode, of each case; they count as of one kind, with the mean of their contexts.
DECODES = 12
# A step that takes more than this many times the median of its kind was held up by something else on the machine.
_HELD_UP = 2.0
# Of how single steps vary: how many numbers tell it, and of how many steps a kind must be to say something.
_QUANTILES, _ENOUGH = 32, 5
# How often each case is measured at most.
_ROUNDS = 5
# Tokens of the prompt of a request that decodes beside others.
_SHORT = 16


class StepCase(NamedTuple):
    """Requests that begin together: how many, and the tokens of each prompt; `beside` others decode meanwhile."""

    rows: int
    prompt: int
    beside: int = 0


# Of the cheapest cases, those that are measured in any case.
_ALWAYS = 4

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
    StepCase(1, 512, 2),
    StepCase(32, 16),
    StepCase(1, 768),
    StepCase(16, 64),
    StepCase(1, 1536),
    StepCase(1, 1536, 3),
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
    """Each case with its steps, those that decode as of one kind; again while there is time.

    A case that would end behind `seconds`, as the ones before it say, is left out; but the first of all are measured
    however long they take, so that there is enough to tell something from.
    """
    source, tokens = random.Random(0), 0
    _run(engine, StepCase(2, 8), source, clock)
    began = clock()
    for number, case in enumerate(cases * _ROUNDS):
        passed, wanted = clock() - began, case.rows * (case.prompt + DECODES)
        if number >= _ALWAYS and passed + wanted * passed / tokens > seconds:
            continue
        yield case, _run(engine, case, source, clock)
        tokens += wanted


def means(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Each kind of step once, with the mean of its times, but for those that were held up."""
    return [MeasuredStep(rows, undisturbed_mean(found)) for rows, found in _by_kind(steps).items()]


def variation(steps: Sequence[MeasuredStep]) -> tuple[float, ...]:
    """How single steps vary: multiples of the mean of their kind, in ascending order, each as likely; 1 in the mean."""
    ratios = []
    for found in _by_kind(steps).values():
        if len(found) >= _ENOUGH:
            mean = undisturbed_mean(found)
            ratios += [seconds / mean for seconds in found]
    if len(ratios) < _QUANTILES:
        return ()
    ratios.sort()
    chosen = [ratios[int((place + 0.5) / _QUANTILES * len(ratios))] for place in range(_QUANTILES)]
    middle = statistics.fmean(chosen)
    return tuple(ratio / middle for ratio in chosen)


def _by_kind(steps: Sequence[MeasuredStep]) -> dict[Rows, list[float]]:
    times: dict[Rows, list[float]] = {}
    for step in steps:
        times.setdefault(step.rows, []).append(step.seconds)
    return times


def undisturbed_mean(seconds: Sequence[float]) -> float:
    """The mean of times of one kind, without those above twice the median: something else on the machine had run."""
    most = _HELD_UP * statistics.median(seconds)
    return statistics.fmean(each for each in seconds if each <= most)


def _run(engine: Engine, case: StepCase, source: random.Random, clock: Callable[[], float]) -> list[MeasuredStep]:
    def request(number: int, prompt: int, output: int) -> Request:
        return Request(
            request_id=number,
            prompt_token_ids=[source.randrange(engine.vocab_size) for _ in range(prompt)],
            sampling=SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True, seed=0),
        )

    # Those beside have decoded by themselves before the others come, and do until the end of their prompts.
    output = 2 * DECODES + case.rows * case.prompt // ENOUGH_PROMPT
    beside = [request(case.rows + number, _SHORT, output) for number in range(case.beside)]
    coming = [request(number, case.prompt, DECODES + 2) for number in range(case.rows)]
    found: list[MeasuredStep] = []
    decodes: list[MeasuredStep] = []
    before = clock()
    arrivals = [Arrival(0.0, each) for each in beside or coming]
    for count, step in enumerate(play(engine.scheduler, arrivals, engine.execute), 1):
        now = clock()
        measured = MeasuredStep(rows_of(step.plan), now - before)
        alone = not measured.rows.chunks and measured.rows.decodes == case.rows + case.beside
        (decodes if alone else found).append(measured)
        if case.beside and count == DECODES:
            for each in coming:
                engine.scheduler.add(each)
        before = clock()
    if case.beside:
        found = [step for step in found if step.rows.chunks]
    if decodes:
        context = statistics.fmean(step.rows.context for step in decodes)
        rows = Rows(float(case.rows + case.beside), context)
        found += [MeasuredStep(rows, step.seconds) for step in decodes]
    return found
