"""`penstock simulate`: the scheduler that serves, on requests that come as they would, in simulated time."""

import random
from array import array
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from penstock.bench.load.arrivals import Arrivals, Open, Replay, arrival_times, check_arrivals
from penstock.bench.load.lengths import parse_lengths
from penstock.bench.load.metrics import Summary, summarize
from penstock.bench.load.outcome import End, Outcome
from penstock.bench.load.report import latency_table
from penstock.bench.load.run import Run
from penstock.bench.load.traces import BLOCK_TOKENS, read_trace
from penstock.cli.deployment import basis_of, deployed
from penstock.cli.files import check_output, write_json
from penstock.cli.plan_options import DeploymentOptions, TrafficOptions
from penstock.configuration.slo import parse_slo
from penstock.core.config import SchedulerConfig
from penstock.core.errors import ConfigurationError
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.planning.memory import memory_of
from penstock.scheduler.build import build_scheduler
from penstock.simulation.books import cache_of
from penstock.simulation.loop import Arrival
from penstock.simulation.replica import Played, Served, play_replica

# Ids that made-up tokens have; nothing reads what they say.
_TOKENS = 2**31


class Simulated(msgspec.Struct, frozen=True):
    """What `penstock simulate --json` prints.

    Attributes:
        machine, basis: on which each step's time is estimated, and what that stands on.
        busy: part of the time in which a step was computed.
        most_waiting: the longest queue.
        most_blocks, blocks: of the KV pool, at most in use, and in all.
    """

    machine: str
    basis: str
    summary: Summary
    steps: int
    busy: float
    most_waiting: int
    most_blocks: int
    blocks: int
    preemptions: int


class _Coming(NamedTuple):
    """A request: its number, when it comes, tokens of its prompt and output, and the identities of prompt blocks."""

    number: int
    at: float
    prompt: int
    output: int
    hash_ids: tuple[int, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """Of the simulated scheduler: sequences at a time, and tokens of a step."""

    rows: int
    tokens: int


def run_simulate(
    model: str | None,
    options: DeploymentOptions,
    traffic: TrafficOptions,
    limits: Limits,
    slo: str | None,
    json_file: Path | None,
) -> None:
    """Play the traffic on one replica and print what its users would see."""
    check_output(json_file)
    deployment, machine = deployed(model, options)
    machine = msgspec.structs.replace(machine, count=deployment.split)
    arrivals, requests = _traffic(traffic)
    longest = max(each.prompt + each.output for each in requests)
    memory = memory_of(deployment, longest, limits.tokens)
    cache = cache_of(deployment, memory)
    if not memory.fits:
        raise ConfigurationError(
            f"A request of {longest:,} tokens does not fit into the cache of {machine}; `penstock plan` says why."
        )
    config = SchedulerConfig(
        max_num_seqs=limits.rows,
        max_num_batched_tokens=max(limits.tokens, limits.rows),
        max_model_len=longest,
    )
    scheduler, basis = build_scheduler(config, cache), basis_of(deployment, options.calibration)
    played = play_replica(scheduler, map(_arrival, requests), deployment, basis.efficiency)
    run = _run(played, arrivals)
    simulated = Simulated(
        machine=str(machine),
        basis=basis.said,
        summary=summarize(run, parse_slo(slo)),
        steps=played.steps,
        busy=played.busy / run.seconds,
        most_waiting=played.most_waiting,
        most_blocks=played.most_blocks,
        blocks=cache.num_blocks,
        preemptions=played.preemptions,
    )
    if json_file is None:
        _print(simulated)
    else:
        write_json(simulated, json_file)


def _traffic(traffic: TrafficOptions) -> tuple[Arrivals, list[_Coming]]:
    """How requests come, and when and how long each is."""
    if (traffic.rate is None) == (traffic.trace is None):
        raise ConfigurationError("Say how requests come: --rate 4 for random times, or --trace FILE.")
    if traffic.trace is not None:
        replay = Replay(traffic.time_scale)
        check_arrivals(replay)
        lines = islice(read_trace(traffic.trace), traffic.requests)
        return replay, [
            _Coming(number, line.at * replay.time_scale, max(1, line.prompt), max(1, line.output), line.hash_ids)
            for number, line in enumerate(lines)
        ]
    assert traffic.rate is not None
    arrivals = Open(traffic.rate)
    check_arrivals(arrivals)
    inputs, outputs = parse_lengths(traffic.input_len, "--input-len"), parse_lengths(traffic.output_len, "--output-len")
    source, times = random.Random(traffic.seed), arrival_times(arrivals, traffic.seed)
    return arrivals, [
        _Coming(number, at, inputs.draw(source), outputs.draw(source))
        for number, at in enumerate(islice(times, traffic.requests))
    ]


def _arrival(coming: _Coming) -> Arrival:
    """A request whose prompt begins like those with the same identities, and like no other's where it has none.

    Its tokens are made when it comes, since there may be many.
    """
    tokens = [
        (identity * BLOCK_TOKENS + place) % _TOKENS for identity in coming.hash_ids for place in range(BLOCK_TOKENS)
    ]
    if len(tokens) < coming.prompt:
        tokens += [coming.number, *range(1, coming.prompt)]
    del tokens[coming.prompt :]
    sampling = SamplingParams(max_tokens=coming.output, seed=0, ignore_eos=True)
    return Arrival(coming.at, Request(request_id=coming.number, prompt_token_ids=tokens, sampling=sampling))


def _run(played: Played, arrivals: Arrivals) -> Run:
    """The same run as the load generator would have measured it."""
    gaps: array[float] = array("f")
    outcomes = []
    for number, request in enumerate(played.requests):
        between = [after - before for before, after in zip(request.tokens, request.tokens[1:], strict=False)]
        gaps.extend(between)
        outcomes.append(_outcome(number, request, max(between, default=None)))
    outcomes.sort(key=lambda outcome: outcome.ended)
    return Run(arrivals, outcomes, gaps, outcomes[-1].ended, 0.0)


def _outcome(number: int, request: Served, longest_gap: float | None) -> Outcome:
    return Outcome(
        number=number,
        end=End.OK,
        scheduled=request.arrived,
        started=request.arrived,
        sent=request.arrived,
        first=request.tokens[0],
        last=request.tokens[-1],
        ended=request.tokens[-1],
        status=200,
        asked=len(request.tokens),
        input_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        output_tokens=len(request.tokens),
        chunks=len(request.tokens),
        longest_gap=longest_gap,
    )


def _print(simulated: Simulated) -> None:
    console, summary = Console(highlight=False, markup=False), simulated.summary
    console.print(f"Simulated on {simulated.machine}; steps stand on {simulated.basis}.")
    console.print(latency_table(summary))
    console.print(
        f"{summary.succeeded:,} requests in {summary.seconds:,.1f} s, {summary.output_token_rate or 0:,.0f} output "
        f"tokens/s; a step was computed {simulated.busy:.0%} of the time."
    )
    if summary.goodput is not None:
        console.print(f"{summary.good:,} requests kept the service levels: {summary.goodput:,.2f} a second.")
    console.print(
        f"At most {simulated.most_waiting:,} waited, and {simulated.most_blocks:,} of {simulated.blocks:,} KV blocks "
        f"were used; {simulated.preemptions:,} preemptions."
    )
