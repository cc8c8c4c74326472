"""Turns what a server counts into what `/v1/stats` answers. Pure."""

from collections.abc import Iterable
from itertools import pairwise

from penstock.core.facts import StepTotals
from penstock.observability.metrics import Mark, Metrics, Sums
from penstock.observability.stats import (
    KvBlocks,
    Latencies,
    Now,
    Period,
    Rates,
    Second,
    Settings,
    SloFigures,
    Utilisation,
)


def now_of(metrics: Metrics, sums: Sums) -> Now:
    """The newest state of the server."""
    load = sums.load
    blocks = KvBlocks(load.blocks_total, load.blocks_used, load.blocks_cached, load.blocks_free, load.blocks_kept)
    held = metrics.held if load.waiting else None
    return Now(metrics.in_flight, load.running, load.waiting, load.waiting_tokens, blocks, held)


def life_of(metrics: Metrics, sums: Sums, seconds: float, settings: Settings) -> Period:
    """What has happened since the start."""
    latencies = Latencies(*(each.life() for each in metrics.latencies))
    return _period(metrics.nothing, sums, seconds, latencies, settings)


def minute_of(metrics: Metrics, sums: Sums, now: float, settings: Settings) -> Period:
    """What has happened in the last seconds."""
    latencies = Latencies(*(each.minute() for each in metrics.latencies))
    start = metrics.marks[0]
    return _period(start.sums, sums, now - start.at, latencies, settings)


def timeline_of(marks: Iterable[Mark], clock_offset: float) -> list[Second]:
    """Each second that is over; `clock_offset` is what the time since 1970 is ahead of the monotonic clock."""
    return [_second(before.sums, mark, clock_offset) for before, mark in pairwise(marks)]


def _second(before: Sums, mark: Mark, clock_offset: float) -> Second:
    after = mark.sums
    load, steps = after.load, after.steps.since(before.steps)
    return Second(
        at=mark.at + clock_offset,
        running=load.running,
        waiting=load.waiting,
        waiting_tokens=load.waiting_tokens,
        kv_used=load.blocks_used,
        kv_cached=load.blocks_cached,
        requests=sum(after.requests.values()) - sum(before.requests.values()),
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        steps=steps.steps,
        schedule=steps.schedule,
        draft=steps.draft,
        execute=steps.execute,
        sample=steps.sample,
        send=steps.send,
        ttft=mark.ttft,
        itl=mark.itl,
    )


def _period(before: Sums, after: Sums, seconds: float, latencies: Latencies, settings: Settings) -> Period:
    requests = _difference(before.requests, after.requests)
    prompt, output = after.prompt_tokens - before.prompt_tokens, after.output_tokens - before.output_tokens
    steps = after.steps.since(before.steps)
    old, new = before.load, after.load
    cost = None if settings.cost_per_hour is None else settings.cost_per_hour * seconds / 3600
    return Period(
        seconds=seconds,
        requests=requests,
        refused=_difference(before.refused, after.refused),
        prompt_tokens=prompt,
        output_tokens=output,
        prefill_tokens=new.prefill_tokens - old.prefill_tokens,
        decode_tokens=new.decode_tokens - old.decode_tokens,
        recomputed_tokens=new.recomputed_tokens - old.recomputed_tokens,
        prefix_queried_tokens=new.prefix_queried_tokens - old.prefix_queried_tokens,
        prefix_hit_tokens=new.prefix_hit_tokens - old.prefix_hit_tokens,
        steps=steps,
        waited={str(wait): waited for wait, waited in steps.waited_for().items()},
        latency=latencies,
        rates=Rates(
            *(_rate(count, seconds) for count in (sum(requests.values()), prompt, output, steps.steps)),
        ),
        utilisation=_utilisation(steps, seconds, settings),
        slo=None if settings.slo is None else _slo(before, after, seconds),
        cost=cost,
        cost_per_million_tokens=None if cost is None or not output else cost / output * 1e6,
    )


def _utilisation(steps: StepTotals, seconds: float, settings: Settings) -> Utilisation:
    busy = steps.seconds
    moved = steps.bytes / busy if busy and steps.bytes else None
    computed = steps.operations / busy if busy and steps.operations else None
    return Utilisation(
        # The newest step may have begun before the period.
        busy=min(1.0, _rate(busy, seconds)),
        bytes_per_second=moved,
        operations_per_second=computed,
        memory=_share(moved, settings.memory_bytes_per_second),
        arithmetic=_share(computed, settings.operations_per_second),
        budget=steps.tokens / steps.budget if steps.budget else None,
        batch=steps.rows / steps.steps if steps.steps else None,
    )


def _slo(before: Sums, after: Sums, seconds: float) -> SloFigures:
    judged, good = after.judged - before.judged, after.good - before.good
    tokens = after.good_tokens - before.good_tokens
    return SloFigures(
        judged=judged,
        good=good,
        attainment=good / judged if judged else None,
        missed=_difference(before.missed, after.missed),
        good_tokens=tokens,
        goodput=_rate(good, seconds),
        token_goodput=_rate(tokens, seconds),
    )


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in after.items()}


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _share(amount: float | None, ceiling: float | None) -> float | None:
    return None if amount is None or not ceiling else amount / ceiling
