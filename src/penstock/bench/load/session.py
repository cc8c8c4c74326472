"""One measurement from beginning to end: the server is looked at, warmed up, and put under load stage by stage."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.bench.load.address import parse_address
from penstock.bench.load.arrivals import Arrivals, Closed, Open
from penstock.bench.load.bodies import Bodies
from penstock.bench.load.client import Client
from penstock.bench.load.content import Content, TokenIds, Words
from penstock.bench.load.dataset import read_dataset
from penstock.bench.load.metrics import Summary, summarize
from penstock.bench.load.outcome import Outcome
from penstock.bench.load.plan import Plan
from penstock.bench.load.probe import ask_once, calibrate, find_model
from penstock.bench.load.run import Limits, Run, run_load
from penstock.bench.load.sweep import largest_rate
from penstock.bench.load.traces import read_trace
from penstock.bench.load.workload import (
    Block,
    Conversation,
    dataset_conversations,
    random_conversations,
    trace_conversations,
    with_cancellations,
)

# Between stages, so that the server is done with what was abandoned.
_REST = 1.0
_MOST_AT_ONCE_IN_WARMUP = 16
_PROBE_TOKENS = 8


class Stage(msgspec.Struct, frozen=True):
    """What was measured with requests that came in one way."""

    run: Run
    summary: Summary


class Measurement(msgspec.Struct, frozen=True):
    """All that was measured.

    Attributes:
        model: that was asked for.
        content: of random prompts, as it was calibrated.
        began: seconds since 1970.
        rate_found: the largest rate that met the service levels, where it was looked for.
    """

    plan: Plan
    model: str
    content: Content
    began: float
    stages: list[Stage]
    rate_found: float | None = None


class Watcher(Protocol):
    """Is told how a measurement goes."""

    def begin(self, arrivals: Arrivals, warmup: bool) -> None:
        """A stage with these arrivals begins."""

    def outcome(self, outcome: Outcome, in_flight: int) -> None:
        """A request has ended, and `in_flight` others have not."""

    def end(self, stage: Stage) -> None:
        """A stage that counts has ended."""


async def measure(plan: Plan, key: str | None, watcher: Watcher) -> Measurement:
    """Carry out a plan. Raises ConfigurationError where the server cannot be measured."""
    client = Client(parse_address(plan.url), key, plan.timeout)
    try:
        bodies = await _prepare(client, plan)
        began, stages = time.time(), []
        found = None
        async for stage, rate in _stages(client, plan, bodies, watcher):
            stages.append(stage)
            found = rate
        return Measurement(plan, bodies.model, bodies.content, began, stages, found)
    finally:
        client.close()


async def _prepare(client: Client, plan: Plan) -> Bodies:
    """How requests are written, once one has been answered."""
    model = await find_model(client, plan.model)
    content = TokenIds(*plan.token_ids) if plan.prompts == "ids" and plan.dataset is None else Words()
    bodies = Bodies(plan.endpoint, model, content, plan.temperature, plan.ignore_eos, plan.extra)
    await ask_once(client, bodies, (Block((plan.seed,), _PROBE_TOKENS),))
    if plan.dataset is None:
        bodies = msgspec.structs.replace(bodies, content=await calibrate(client, bodies))
    return bodies


async def _stages(
    client: Client, plan: Plan, bodies: Bodies, watcher: Watcher
) -> AsyncIterator[tuple[Stage, float | None]]:
    """Each stage, and the largest rate that has been found by then."""
    await _warm_up(client, plan, bodies, watcher)
    if not plan.find_rate:
        for number, arrivals in enumerate(plan.stages, start=1):
            yield await _stage(client, plan, bodies, watcher, arrivals, number), None
        return
    first = plan.stages[0]
    assert isinstance(first, Open)
    search = largest_rate(first.rate)
    rate, number, met = next(search), 0, None
    while True:
        number += 1
        arrivals = Open(rate, first.burstiness)
        stage = await _stage(client, plan, bodies, watcher, arrivals, number)
        good = bool(stage.summary.meets_slo)
        met = max(met or 0.0, rate) if good else met
        yield stage, met
        try:
            rate = search.send(good)
        except StopIteration:
            return


async def _warm_up(client: Client, plan: Plan, bodies: Bodies, watcher: Watcher) -> None:
    if plan.warmup:
        arrivals = Closed(min(plan.warmup, _MOST_AT_ONCE_IN_WARMUP))
        watcher.begin(arrivals, warmup=True)
        limits = Limits(plan.warmup, None, plan.think_time)
        await run_load(client, bodies, _conversations(plan, _seed(plan, 0)), arrivals, limits, 0, watcher.outcome)


async def _stage(
    client: Client, plan: Plan, bodies: Bodies, watcher: Watcher, arrivals: Arrivals, number: int
) -> Stage:
    if number > 1:
        await asyncio.sleep(_REST)
    watcher.begin(arrivals, warmup=False)
    seed = _seed(plan, number)
    early = plan.is_sweep and isinstance(arrivals, Open)
    limits = Limits(plan.requests, plan.seconds, plan.think_time, early)
    conversations: Iterator[Conversation] = _conversations(plan, seed)
    if plan.cancel:
        conversations = with_cancellations(conversations, plan.cancel, seed)
    run = await run_load(client, bodies, conversations, arrivals, limits, seed, watcher.outcome)
    stage = Stage(run, summarize(run, plan.slo))
    watcher.end(stage)
    return stage


def _seed(plan: Plan, number: int) -> int:
    """A stage's seed: no stage has the prompts of another, which a prefix cache would know."""
    return 1000 * plan.seed + number


def _conversations(plan: Plan, seed: int) -> Iterator[Conversation]:
    if plan.trace is not None:
        return trace_conversations(read_trace(Path(plan.trace)), plan.length_scale, seed)
    if plan.dataset is not None:
        rows = read_dataset(Path(plan.dataset), chat=plan.endpoint == "chat")
        return dataset_conversations(rows, plan.shape.output, seed)
    return random_conversations(plan.shape, seed)
