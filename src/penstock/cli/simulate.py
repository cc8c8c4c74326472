"""`penstock simulate`: the scheduler that serves, on requests that come as they would, in simulated time."""

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from penstock.bench.drawing import check_plots
from penstock.bench.load.arrivals import Arrivals, Open
from penstock.bench.load.metrics import Summary, summarize
from penstock.bench.load.outcome import End, Outcome
from penstock.bench.load.plots import draw_plots
from penstock.bench.load.report import latency_table
from penstock.bench.load.run import Run
from penstock.bench.load.session import Stage
from penstock.bench.load.sweep import largest_rate
from penstock.cli.deployment import deployed
from penstock.cli.files import check_output, write_json
from penstock.cli.plan_disk import note_of, parse_disk
from penstock.cli.plan_options import DeploymentOptions, FleetOptions, MoneyOptions, TrafficOptions
from penstock.cli.plan_prices import Prices, prices_of
from penstock.cli.plan_report import priced
from penstock.cli.simulated_roles import RoleFigures, RolesAsked, check_roles, parse_roles, roles_in_words
from penstock.cli.simulated_traffic import Traffic, check_traffic, traffic_of
from penstock.configuration.options import DEFAULT_TARGET_ITL
from penstock.configuration.sizes import parse_size
from penstock.configuration.slo import Slo, parse_slo
from penstock.core.config import SchedulerConfig
from penstock.core.errors import ConfigurationError
from penstock.planning.bounding import policy_for
from penstock.planning.calibration import Basis
from penstock.planning.disk import Disk
from penstock.planning.hardware import Machine
from penstock.planning.latency import Deployment
from penstock.planning.memory import memory_of
from penstock.routing.policies import policy_of
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.books import cache_of
from penstock.simulation.disk import SimulatedDisk
from penstock.simulation.fleet import Played, play_fleet
from penstock.simulation.peer import SimulatedPeer
from penstock.simulation.replica import Figures, Replica, Served
from penstock.simulation.roles import Roles
from penstock.simulation.times import StepTimes


class Costs(msgspec.Struct, frozen=True):
    """Dollars.

    Attributes:
        price: of a device, in words.
        dollars: for all devices, from the beginning to the last request's end.
        million_output: the same for a million output tokens.
    """

    price: str
    dollars: float
    million_output: float


class DiskFigures(msgspec.Struct, frozen=True):
    """What disks beside the KV pools were to all replicas.

    Attributes:
        hit_rate: part of the prompts' tokens that was read from there; the rest of `Simulated.hit_rate` was in pools.
        written, dropped: blocks that were written there, and that were not since the disk was too slow.
    """

    hit_rate: float
    written: int
    dropped: int


class Simulated(msgspec.Struct, frozen=True):
    """What `penstock simulate --json` prints.

    Attributes:
        machine, basis: on which each step's time is estimated, and what that stands on.
        replicas, router: how many there were, and how each request's was chosen.
        busy: part of the time in which a replica computed a step, in the mean.
        most_waiting: the most requests at a time that a replica's step left out.
        most_blocks, blocks: of a replica's KV pool, at most in use, and in all.
        hit_rate: part of the prompts' tokens that the prefix cache had.
        disk: None where there was none; `disk_note` is what should be known of it.
        costs: None where no price of the device is known.
        price_notes: what should be known of it.
        turns: of each conversation; rates are of conversations.
        rate_found: the largest rate, or factor of a trace's, that met the service levels, where it was looked for.
        tried: rates that were tried for it, and whether each met them.
        roles: None where all replicas do all.
    """

    machine: str
    basis: str
    replicas: int
    router: str
    summary: Summary
    steps: int
    busy: float
    most_waiting: int
    most_blocks: int
    blocks: int
    preemptions: int
    hit_rate: float
    turns: int
    disk: DiskFigures | None = None
    costs: Costs | None = None
    price_notes: tuple[str, ...] = ()
    rate_found: float | None = None
    tried: tuple[tuple[float, bool], ...] = ()
    disk_note: str | None = None
    roles: RoleFigures | None = None


class Sought(NamedTuple):
    """Service levels, and whether the largest rate that meets them is looked for."""

    slo: str | None
    find_rate: bool = False


class Output(NamedTuple):
    """Where figures are written, and plots of them."""

    json_file: Path | None
    plots: Path | None


class SimulatedFleet(NamedTuple):
    """What is simulated, the same for each rate that is tried."""

    deployment: Deployment
    machine: Machine
    basis: Basis
    options: FleetOptions
    slo: Slo | None
    prices: Prices
    disk: Disk | None
    roles: RolesAsked | None = None


def run_simulate(
    model: str | None,
    options: DeploymentOptions,
    fleet: FleetOptions,
    traffic: TrafficOptions,
    sought: Sought,
    output: Output,
) -> None:
    """Play the traffic on replicas and print what their users would see."""
    check_output(output.json_file)
    if output.plots is not None:
        check_plots(output.plots)
    check_traffic(traffic)
    slo = parse_slo(sought.slo)
    if sought.find_rate and slo is None:
        raise ConfigurationError("--find-rate needs --slo, such as --slo ttft=500ms,tpot=50ms.")
    if sought.find_rate and traffic.concurrency is not None:
        raise ConfigurationError("--find-rate is of requests that come at a rate, and --concurrency has none.")
    if fleet.target_itl is not None and not fleet.target_itl > 0:
        raise ConfigurationError(f"--target-itl {fleet.target_itl:g} is no time; give seconds above 0.")
    if options.pipeline_parallel_size > 1:
        raise ConfigurationError("Simulations have no stages of layers; leave --pipeline-parallel-size out.")
    if options.context_parallel_size > 1:
        raise ConfigurationError("Simulations have whole contexts; leave --context-parallel-size out.")
    if options.data_parallel_size > 1:
        raise ConfigurationError("Simulations have no groups that share experts; leave --data-parallel-size out.")
    disk = parse_disk(options.kv_disk)
    deployment, machine, replicas, basis = deployed(model, options, fleet.roles)
    roles = parse_roles(fleet.roles, deployment, basis.efficiency)
    if roles is not None:
        replicas = check_roles(roles, fleet, options)
    fleet = replace(fleet, replicas=fleet.replicas or replicas)
    machine = msgspec.structs.replace(machine, count=deployment.split)
    prices = prices_of(MoneyOptions(price=fleet.price), deployment.device, date.today(), rate=None)
    if disk is not None and not fleet.enable_prefix_caching:
        raise ConfigurationError("--kv-disk is of no use: --no-enable-prefix-caching keeps no prefix.")
    bounds = policy_for(options.kv_policy, deployment.shape)
    simulated = SimulatedFleet(deployment, machine, basis, fleet, slo, prices, disk, roles)

    stages: list[Stage] = []

    def at(factor: float) -> Simulated:
        rate = None if traffic.rate is None else traffic.rate * factor
        coming = replace(traffic_of(traffic, rate, traffic.time_scale / factor), kv_policy=bounds)
        found, run = play(simulated, coming)
        if output.plots is not None:
            stages.append(Stage(run, found.summary))
        return found

    # Of a trace, times its own rate.
    found = _search(at, traffic.rate or 1 / traffic.time_scale) if sought.find_rate else at(1.0)
    if output.json_file is None:
        _print(found, sought)
    else:
        write_json(found, output.json_file)
    if output.plots is not None:
        for path in draw_plots(stages, slo, output.plots):
            # The standard output may have the figures.
            print(f"wrote {path}", file=sys.stderr)


def _search(at: Callable[[float], Simulated], first: float) -> Simulated:
    """The run at the largest rate that meets the service levels, or at the lowest that was tried, where none does."""
    search, tried, runs = largest_rate(first), [], {}
    rate = next(search)
    while True:
        runs[rate] = at(rate / first)
        met = bool(runs[rate].summary.meets_slo)
        tried.append((rate, met))
        try:
            rate = search.send(met)
        except StopIteration as end:
            best: float | None = end.value
            run = runs[min(runs) if best is None else best]
            return msgspec.structs.replace(run, rate_found=best, tried=tuple(tried))


def play(fleet: SimulatedFleet, traffic: Traffic) -> tuple[Simulated, Run]:
    """Serve the traffic: the figures, and the run that they are of. Raises ConfigurationError where it cannot be."""
    options = fleet.options
    held = traffic.longest if traffic.kv_policy is None else traffic.kv_policy.held(traffic.longest)
    memory = memory_of(fleet.deployment, held, options.max_num_batched_tokens)
    asked = parse_size(options.kv_cache_memory, "--kv-cache-memory")
    if asked is not None and asked > memory.cache_bytes:
        raise ConfigurationError(
            f"--kv-cache-memory is {asked / 1e9:.2f} GB, and {fleet.machine.device.name} has "
            f"{max(0, memory.cache_bytes) / 1e9:.2f} GB left for it."
        )
    cache = cache_of(fleet.deployment, memory.cache_bytes if asked is None else asked)
    if not memory.fits:
        raise ConfigurationError(
            f"A request that holds {held:,} tokens does not fit into the cache of {fleet.machine}; `penstock plan` "
            "says why."
        )
    # Where no prompt begins like another, looking for that changes nothing but the time that it takes.
    policy, caching = policy_of(options.router), traffic.shares and options.enable_prefix_caching
    caching |= fleet.roles is not None
    events = caching and policy.looks_at_prefixes
    cache = msgspec.structs.replace(cache, prefix_caching=caching, events=events)
    config = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=max(options.max_num_batched_tokens, options.max_num_seqs),
        max_chunk=options.long_prefill_token_threshold,
        max_model_len=traffic.longest,
        target_itl=DEFAULT_TARGET_ITL if options.target_itl is None else options.target_itl,
        bound_batch=options.target_itl is not None,
    )
    count = options.replicas or 1
    times = StepTimes(fleet.deployment, fleet.basis.efficiency, fleet.basis.varied, traffic.seed)
    schedulers = [build_scheduler(config, cache) for _ in range(count)]
    roles = None if fleet.roles is None else Roles(*fleet.roles.places)
    peers = _peers(fleet, schedulers)
    replicas = [
        Replica(each, times, number, peers.get(number) or _disk(fleet, each)) for number, each in enumerate(schedulers)
    ]
    played = play_fleet(replicas, traffic.source(times.after, fleet.basis.apart), policy, roles, peers)
    run = _run(played, traffic.arrivals)
    figures, summary = played.figures, summarize(run, fleet.slo)
    found = Simulated(
        machine=str(fleet.machine),
        basis=fleet.basis.said,
        replicas=count,
        router=options.router,
        summary=summary,
        steps=figures.steps,
        busy=figures.busy / run.seconds / count,
        most_waiting=figures.most_waiting,
        most_blocks=figures.most_blocks,
        blocks=cache.num_blocks,
        preemptions=figures.preemptions,
        hit_rate=(summary.cached_tokens or 0) / (summary.input_tokens or 1),
        turns=traffic.turns,
        disk=None if fleet.disk is None else _of_disks(figures, summary.input_tokens or 1),
        costs=_costs(fleet, run.seconds, summary.output_tokens or 1),
        price_notes=fleet.prices.notes,
        disk_note=None if fleet.disk is None else note_of(fleet.deployment.device),
        roles=None if fleet.roles is None else fleet.roles.told(played),
    )
    return found, run


def _peers(fleet: SimulatedFleet, schedulers: Sequence[Scheduler]) -> dict[int, SimulatedPeer]:
    """What replicas that decode pull from, by their places."""
    if fleet.roles is None:
        return {}
    transfer, devices = fleet.roles.transfer, fleet.deployment.split
    return {place: SimulatedPeer(transfer, schedulers[place], devices) for place in fleet.roles.places[1]}


def _disk(fleet: SimulatedFleet, scheduler: Scheduler) -> SimulatedDisk | None:
    return None if fleet.disk is None else SimulatedDisk(fleet.disk, scheduler, fleet.deployment.split)


def _of_disks(figures: Figures, input_tokens: int) -> DiskFigures:
    return DiskFigures(figures.disk_hit_tokens / input_tokens, figures.disk_written, figures.disk_dropped)


def _costs(fleet: SimulatedFleet, seconds: float, output_tokens: int) -> Costs | None:
    """What all devices cost for a time, where their price is known."""
    hour = fleet.prices.device_hour
    if hour is None:
        return None
    devices = (fleet.options.replicas or 1) * fleet.deployment.devices
    dollars = hour * devices / fleet.deployment.device.parts * seconds / 3600
    price = priced(hour, fleet.prices.device_price, fleet.deployment.device)
    return Costs(price=price, dollars=dollars, million_output=1e6 * dollars / output_tokens)


def _run(played: Played, arrivals: Arrivals) -> Run:
    """The same run as the load generator would have measured it."""
    outcomes = [_outcome(number, request) for number, request in enumerate(played.requests)]
    outcomes.sort(key=lambda outcome: outcome.ended)
    gaps = played.figures.gaps
    return Run(arrivals, outcomes, array("d", gaps), outcomes[-1].ended, 0.0, gap_counts=array("q", gaps.values()))


def _outcome(number: int, request: Served) -> Outcome:
    return Outcome(
        number=number,
        end=End.OK,
        scheduled=request.arrived,
        started=request.arrived,
        sent=request.arrived,
        first=request.first,
        last=request.last,
        ended=request.last,
        status=200,
        asked=request.output_tokens,
        input_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        output_tokens=request.output_tokens,
        chunks=request.output_tokens,
        longest_gap=request.longest_gap if request.output_tokens > 1 else None,
    )


def _print(simulated: Simulated, sought: Sought) -> None:
    console, summary = Console(highlight=False, markup=False), simulated.summary
    several = f"{simulated.replicas} replicas, {simulated.router}, each " if simulated.replicas > 1 else ""
    console.print(f"Simulated on {several}{simulated.machine}; steps stand on {simulated.basis}.")
    if sought.find_rate:
        console.print(_verdict(simulated, sought.slo))
    console.print(latency_table(summary))
    console.print(
        f"{summary.succeeded:,} requests in {summary.seconds:,.1f} s, {summary.output_token_rate or 0:,.0f} output "
        f"tokens/s; a step was computed {simulated.busy:.0%} of the time."
    )
    if summary.goodput is not None:
        console.print(f"{summary.good:,} requests kept the service levels: {summary.goodput:,.2f} a second.")
    console.print(
        f"At most {simulated.most_waiting:,} waited, and {simulated.most_blocks:,} of {simulated.blocks:,} KV blocks "
        f"were used; {simulated.preemptions:,} preemptions. The prefix cache had {simulated.hit_rate:.0%} of the "
        "prompts' tokens."
    )
    if (disk := simulated.disk) is not None:
        console.print(
            f"{disk.hit_rate:.0%} of the prompts' tokens came from disks, and {simulated.hit_rate - disk.hit_rate:.0%} "
            f"from KV pools; {disk.written:,} blocks were written, and {disk.dropped:,} not, since a disk was too slow."
        )
    if (roles := simulated.roles) is not None:
        console.print(roles_in_words(roles))
    if simulated.disk_note is not None:
        console.print(simulated.disk_note)
    for note in simulated.price_notes:
        console.print(note)
    if (costs := simulated.costs) is not None:
        console.print(
            f"${costs.dollars:,.4f} for all of it, ${costs.million_output:,.2f} for a million output tokens, at "
            f"{costs.price}."
        )


def _verdict(simulated: Simulated, slo: str | None) -> str:
    """The answer of a search for the largest rate."""
    unit = "times the trace's rate"
    if isinstance(simulated.summary.arrivals, Open):
        unit = "requests a second" if simulated.turns == 1 else "conversations a second"
    rates = [rate for rate, _ in simulated.tried]
    if simulated.rate_found is None:
        return f"None of the rates that were tried meets {slo} at p99; the lowest was {min(rates):.4g} {unit}."
    if simulated.rate_found == max(rates):
        return f"Even the highest rate that was tried, {max(rates):.4g} {unit}, meets {slo} at p99."
    return f"The largest rate that meets {slo} at p99: {simulated.rate_found:.4g} {unit}."
