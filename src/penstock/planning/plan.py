"""A plan: what a model needs of a machine, what it will do on it, and what its tokens cost."""

from collections.abc import Sequence

import msgspec

from penstock.planning.asked import Asked
from penstock.planning.calibration import Basis, prior_basis
from penstock.planning.disk import DiskTold, disk_told
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Estimate, Workload, at_rate, estimate, most_throughput
from penstock.planning.interval import Interval, around
from penstock.planning.latency import Deployment, least_seconds
from penstock.planning.layouts import Layout, keeps_asked, largest_within, layouts_of
from penstock.planning.levers import Lever, levers_of
from penstock.planning.load import Load, replicas_for
from penstock.planning.memory import Memory, memory_of, places_of
from penstock.planning.money import Money, Served, money_of
from penstock.planning.ranks import BesideThreads, beside_threads, one_process
from penstock.planning.roles import RolesTold
from penstock.planning.roofline import Roofline, roofline_of

_SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# Twice the requests at a time that bring less than this part more tokens are behind the knee.
KNEE_GAIN = 0.2


class Speed(msgspec.Struct, frozen=True):
    """What a client sees, in milliseconds and tokens a second of the whole deployment."""

    ttft_ms: Interval
    tpot_ms: Interval
    output_tokens_per_second: Interval


class SweepPoint(msgspec.Struct, frozen=True):
    """One replica at a number of requests at a time.

    Attributes:
        gain: tokens a second, over those of the point before, which has half the requests but for the last point; None
            for the first.
        limit: what most of a step's time goes into.
        within: whether TTFT and TPOT are within what was asked; None where nothing was.
    """

    concurrency: int
    ttft_ms: float
    tpot_ms: float
    output_tokens_per_second: float
    gain: float | None
    limit: str
    within: bool | None


class Bounds(msgspec.Struct, frozen=True):
    """What no engine can be faster than, in milliseconds: a prompt's computation, a token of one request, a step."""

    prefill_ms: float
    single_token_ms: float
    step_ms: float


class Plan(msgspec.Struct, frozen=True):
    """What `penstock plan` tells.

    Attributes:
        parameters, active_parameters: of the model; those that one token's pass multiplies by.
        estimate: at the workload's concurrency; None where the model does not fit.
        most_tokens_per_second: of output, where requests always wait and as many run as fit; None where none does.
        knee: the concurrency of a replica behind which twice the requests bring little; largest: the largest that
            fits and keeps what was asked.
        load, peak: of a rate of requests, on as many replicas as it needs; of the busiest minute; None where it is
            not known.
        levers: what each other setting would change, at the same requests; none where the model does not fit.
        layouts: ways to share out the machine's devices; none of a single device.
        roofline: the workload's prompt and the sweep's decodes on the device's roofline; None where it does not fit.
        threads: of ranks that share a processor, one process with all of its threads beside them; else None.
        roles: prompts apart from decoding, where some replicas were asked for to do one; else None.
        notes: what was assumed, and what should be known of these figures.
        disk: what a disk beside each replica's KV pool would be to it; None where none was asked for.
    """

    machine: str
    split: int
    stages: int
    groups: int
    stripes: int
    parameters: int
    active_parameters: int
    memory: Memory
    bounds: Bounds
    estimate: Speed | None
    most_tokens_per_second: Interval | None
    sweep: list[SweepPoint]
    knee: int | None
    largest: int | None
    load: Load | None
    peak: Load | None
    money: Money | None
    roofline: Roofline | None
    levers: list[Lever]
    layouts: list[Layout]
    notes: list[str]
    disk: DiskTold | None = None
    threads: BesideThreads | None = None
    roles: RolesTold | None = None


def make_plan(asked: Asked, basis: Basis | None = None) -> Plan:
    """The plan of a deployment under a workload.

    `basis` has the coefficients; None: those of public measurements. Raises ConfigurationError where the
    machine's devices cannot be shared out.
    """
    deployment, workload = asked.deployment, asked.workload
    replicas = asked.machine.replicas(deployment.devices)
    context = round(workload.input_tokens + workload.output_tokens)
    memory = memory_of(deployment, context)
    basis = basis or prior_basis(deployment)
    efficiency = basis.efficiency
    if workload.loop == "open" and asked.rate is not None and memory.fits:
        most = float(memory.max_concurrency)
        workload = at_rate(deployment, efficiency, workload, asked.rate / replicas, most)
        workload = msgspec.structs.replace(workload, concurrency=workload.concurrency * replicas)
    wanted = max(1.0, workload.concurrency / replicas)
    # What does not fit waits, and is not in a step.
    places = max(1.0, places_of(deployment, memory, workload))
    each = msgspec.structs.replace(workload, concurrency=min(wanted, places))
    told = estimate(deployment, efficiency, each)
    seen = estimate(deployment, efficiency, msgspec.structs.replace(workload, concurrency=wanted), places)
    sweep = _sweep(asked, efficiency, memory.max_concurrency) if memory.fits else []
    largest = None
    if memory.fits:
        largest = largest_within(asked, deployment, efficiency, memory.max_concurrency)[0] or None
    full = rate = told.output_tokens_per_second * min(replicas, workload.concurrency)
    if workload.loop == "open" and asked.rate is not None:
        # One request at a time is told of, also where there is often none.
        rate = min(full, asked.rate * max(1.0, workload.output_tokens))
    load, peak = (
        None if largest is None or coming is None else _load(asked, efficiency, largest, coming)
        for coming in (asked.rate, asked.peak_rate)
    )
    speed = _speed(told, seen.ttft, rate, basis, workload.output_tokens)
    shown = speed.output_tokens_per_second
    served = Served(each, told, full, shown.low / rate, shown.high / rate, basis.said, largest, load)
    return Plan(
        machine=str(asked.machine),
        split=deployment.split,
        stages=deployment.stages,
        groups=deployment.groups,
        stripes=deployment.stripes,
        parameters=deployment.shape.parameters,
        active_parameters=deployment.shape.active_parameters,
        memory=memory,
        bounds=_bounds(deployment, each),
        estimate=speed if memory.fits else None,
        most_tokens_per_second=_most(asked, basis, places, replicas) if memory.fits else None,
        sweep=sweep,
        knee=_knee(sweep),
        largest=largest,
        load=load,
        peak=peak,
        money=money_of(asked, efficiency, served) if memory.fits else None,
        roofline=roofline_of(deployment, efficiency, workload, [point.concurrency for point in sweep])
        if sweep
        else None,
        levers=levers_of(asked, efficiency, each) if memory.fits else [],
        layouts=layouts_of(asked, efficiency),
        notes=[
            *_notes(asked, memory, wanted, kept=largest is not None),
            *_saturated(asked, told, replicas),
            *asked.price_notes,
        ],
        disk=None if asked.disk is None else disk_told(deployment, efficiency, asked.disk),
        threads=beside_threads(deployment, efficiency, workload) if deployment.device.parts > 1 else None,
    )


def _speed(told: Estimate, ttft: float, rate: float, basis: Basis, output_tokens: float) -> Speed:
    """Means, TTFT with the wait for a place, and a rate, whose interval is that of a whole request's time."""
    whole = told.end_to_end(output_tokens)
    further = whole - told.ttft
    ends = [(told.ttft * first + further * later) / whole for first, later in zip(basis.ttft, basis.tpot, strict=True)]
    return Speed(
        ttft_ms=around(ttft * 1e3, *basis.ttft, basis.said),
        tpot_ms=around(told.tpot * 1e3, *basis.tpot, basis.said),
        output_tokens_per_second=around(rate, 1 / ends[1], 1 / ends[0], basis.said),
    )


def _most(asked: Asked, basis: Basis, places: float, replicas: int) -> Interval:
    """Output tokens a second of all replicas, each with as many requests as fit."""
    full = msgspec.structs.replace(asked.workload, concurrency=min(places, float(_SWEEP[-1])))
    # Where decodes are not kept waiting by all of a prompt, a closed loop that is full may finish a little more.
    closed = estimate(asked.deployment, basis.efficiency, full).output_tokens_per_second
    rate = replicas * max(closed, most_throughput(asked.deployment, basis.efficiency, full))
    return around(rate, 1 / basis.tpot[1], 1 / basis.tpot[0], basis.said)


def _bounds(deployment: Deployment, workload: Workload) -> Bounds:
    """What the device's own limits allow, with nothing beside them."""
    # Stages each have their part of the requests at a time.
    rows = max(1.0, workload.concurrency / deployment.stages)
    return Bounds(
        prefill_ms=least_seconds(deployment, workload.computed_tokens) * 1e3,
        single_token_ms=least_seconds(deployment, 1.0) * 1e3,
        step_ms=least_seconds(deployment, rows, rows, workload.input_tokens) * 1e3,
    )


def _sweep(asked: Asked, efficiency: Efficiency, most: int) -> list[SweepPoint]:
    sizes = [size for size in _SWEEP if size <= most]
    if most not in sizes and most <= _SWEEP[-1]:
        sizes.append(most)
    found: list[SweepPoint] = []
    for size in sizes:
        told = estimate(asked.deployment, efficiency, msgspec.structs.replace(asked.workload, concurrency=float(size)))
        within = None
        if asked.ttft is not None or asked.tpot is not None:
            within = keeps_asked(asked, told)
        rate = told.output_tokens_per_second
        gain = rate / found[-1].output_tokens_per_second - 1 if found else None
        found.append(SweepPoint(size, told.ttft * 1e3, told.tpot * 1e3, rate, gain, told.step.limit, within))
    return found


def _knee(sweep: Sequence[SweepPoint]) -> int | None:
    """The last size of a sweep before doubling brings less than KNEE_GAIN."""
    for before, after in zip(sweep, sweep[1:], strict=False):
        doubled = after.concurrency >= 2 * before.concurrency
        if doubled and after.gain is not None and after.gain < KNEE_GAIN:
            return before.concurrency
    return None


def _load(asked: Asked, efficiency: Efficiency, places: int, rate: float) -> Load:
    """The replicas that a rate needs, each with as many requests at a time as keep what was asked."""
    workload = msgspec.structs.replace(asked.workload, concurrency=float(places))
    told = estimate(asked.deployment, efficiency, workload)
    seconds = told.end_to_end(workload.output_tokens)
    # What is left for waiting, where a first token has a limit.
    left = None if asked.ttft is None else max(0.0, asked.ttft - told.ttft)
    return replicas_for(places, rate, seconds, left)


def _notes(asked: Asked, memory: Memory, each: float, *, kept: bool) -> list[str]:
    """What should be known of the figures; `each` of the replicas was asked for that many requests at a time."""
    deployment, device = asked.deployment, asked.deployment.device
    notes = [f"The requests are {asked.said}."] if asked.said else []
    notes += [
        f"The model's config says nothing else, so it is taken to have {what}." for what in deployment.shape.assumed
    ]
    if deployment.shape.held is not None:
        notes.append(
            f"Each request holds at most {deployment.shape.held:,} tokens of its context (--kv-policy); what that "
            "costs in quality is not among these figures."
        )
    if not device.is_checked:
        notes.append(f"The figures of {device.name} are from memory and were not read again in a source.")
    if not memory.fits:
        notes.append(_too_large(deployment, memory))
    elif each > places_of(deployment, memory, asked.workload):
        notes.append(
            f"A replica's cache holds {memory.max_concurrency:,} requests of {memory.context:,} tokens, or a few more "
            f"while they grow; of the {each:,.0f} asked for, the others wait, and TTFT has that in it."
        )
    if memory.fits and not kept:
        notes.append("No number of requests at a time keeps the service levels, so no replicas are counted for a rate.")
    longest = deployment.shape.max_context
    if longest and memory.context > longest:
        notes.append(f"The model was made for {longest:,} tokens, and requests of {memory.context:,} are planned.")
    return notes


def _saturated(asked: Asked, told: Estimate, replicas: int) -> list[str]:
    """That a rate is more than the asked devices can serve, where it is."""
    if asked.workload.loop != "open" or asked.rate is None:
        return []
    served = told.output_tokens_per_second / max(1.0, asked.workload.output_tokens) * replicas
    if served >= 0.99 * asked.rate:
        return []
    return [
        f"{asked.machine} serve about {served:,.1f} requests a second, so at {asked.rate:g} the queue grows without "
        "end; TTFT is told without it."
    ]


def _too_large(deployment: Deployment, memory: Memory) -> str:
    """Why it does not fit, and the smallest number of devices on which it would."""
    if deployment.device.kind == "cpu":
        return _too_large_for_processor(one_process(deployment), memory.context)
    for sharing in (2, 4, 8, 16, 32, 64, 128):
        split = sharing * deployment.groups
        larger = msgspec.structs.replace(deployment, split=split)
        if sharing > deployment.sharing and memory_of(larger, memory.context).fits:
            return (
                f"It does not fit: a device has {memory.usable_bytes / 1e9:.1f} GB to use, its weights take "
                f"{memory.device_weights_bytes / 1e9:.1f} GB; over {split} devices it would "
                f"(--tensor-parallel-size {sharing}), or in a format of fewer bits."
            )
    return "It does not fit on 128 of these devices either."


def _too_large_for_processor(whole: Deployment, context: int) -> str:
    """The same of a processor, whose ranks share its memory: stages on several machines each have their own."""
    memory = memory_of(whole, context)
    why = (
        f"It does not fit: {whole.device.name} has {memory.usable_bytes / 1e9:.1f} GB to use, and the weights take "
        f"{memory.device_weights_bytes / 1e9:.1f} GB"
    )
    for machines in (2, 4, 8, 16, 32, 64):
        stages = msgspec.structs.replace(whole, stages=machines)
        if machines <= whole.shape.num_layers and memory_of(stages, context).fits:
            return (
                f"{why}; on {machines} machines it would (--pipeline-parallel-size {machines} --machines {machines} of "
                "`penstock serve`), or in a format of fewer bits."
            )
    return f"{why}; nor does it on as many machines as it has layers, or 64."
