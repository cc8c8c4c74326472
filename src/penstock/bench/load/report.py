"""Figures for people, and for programs."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from penstock import __version__
from penstock.bench.load.arrivals import Open
from penstock.bench.load.metrics import Distribution, Summary
from penstock.bench.load.plan import Plan, describe, load_of
from penstock.bench.load.session import Measurement

_NONE = "–"
# The client's own lag that is told, in seconds, and the share of a core from which its stamps may be late.
_LAG = 0.02
_CPU = 0.85
# Fewer requests have no p99 but their latest.
_FOR_P99 = 100

LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "e2e_per_token": "E2E / tokens",
    "send_lag": "send lag",
}


def latency_table(summary: Summary) -> Table:
    """Milliseconds of each kind of latency."""
    table = Table("latency, ms", title=describe(summary.arrivals))
    for heading in ("mean", "median", "p90", "p95", "p99", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, label in LATENCIES.items():
        table.add_row(label, *_milliseconds(getattr(summary, name)))
    return table


def figure_table(summary: Summary, plan: Plan) -> Table:
    """Everything that is no latency."""
    table = Table("figure", title=None)
    table.add_column("value", justify="right")
    apart = {"failed": summary.failed, "cancelled": summary.cancelled, "abandoned": summary.abandoned}
    counts = "".join(f", {count:,} {name}" for name, count in apart.items() if count)
    rows = {
        "requests": f"{summary.succeeded:,} of {summary.sent:,} succeeded{counts}",
        "seconds": _number(summary.seconds),
        "requests/s": _number(summary.request_rate),
        "input tokens/s": _number(summary.input_token_rate),
        "output tokens/s": _number(summary.output_token_rate),
        "input tokens a request": _mean(summary.input_tokens, summary.succeeded),
        "of them cached": _mean(summary.cached_tokens, summary.succeeded),
        "output tokens a request": _mean(summary.output_tokens, summary.succeeded),
        "in flight, mean / most": f"{_number(summary.in_flight)} / {summary.most_in_flight:,}",
        "client, share of a core": _NONE if summary.cpu is None else f"{summary.cpu:.0%}",
    }
    if plan.slo is not None and summary.good is not None:
        share = f" ({summary.good / summary.succeeded:.1%} of what succeeded)" if summary.succeeded else ""
        rows |= {
            f"goodput ({plan.slo}), requests/s": _number(summary.goodput) + share,
            "token goodput, output tokens/s": _number(summary.token_goodput),
            "p99 within all limits": "yes" if summary.meets_slo else "no",
        }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def sweep_table(summaries: Sequence[Summary], plan: Plan) -> Table:
    """A line for each stage."""
    table = Table("load", title="all stages; latencies: p99, ms")
    headings = ["req/s", "tok/s", "TTFT", "TPOT", "E2E", "failed"]
    if plan.slo is not None:
        headings += ["goodput", "met"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for summary in sorted(summaries, key=lambda summary: load_of(summary.arrivals)):
        latest = [latency and f"{1000 * latency.p99:,.1f}" for latency in (summary.ttft, summary.tpot, summary.e2e)]
        row = [_number(summary.request_rate), _number(summary.output_token_rate), *latest, f"{summary.failed:,}"]
        if plan.slo is not None:
            grew = summary.oversaturated or summary.kept_up is False
            row += [_number(summary.goodput), "yes" if summary.meets_slo else "grew" if grew else "no"]
        table.add_row(describe(summary.arrivals), *(value or _NONE for value in row))
    return table


def error_table(summary: Summary) -> Table | None:
    """What went wrong, by kind; None where nothing did."""
    if not summary.errors:
        return None
    table = Table("error", "count", "the first of them", title="errors")
    for error in summary.errors:
        kind = f"{error.kind} (breach of the protocol)" if error.violation else error.kind
        table.add_row(escape(kind), f"{error.count:,}", escape(error.message))
    return table


def notes(summary: Summary, plan: Plan) -> Iterator[str]:
    """What a reader of the figures should know, a sentence each."""
    if summary.oversaturated:
        yield (
            f"{describe(summary.arrivals)} is more than the server can do: the queue for first tokens grew without "
            "end, and this stage was left early."
        )
    elif summary.kept_up is False:
        yield (
            f"The server did not keep up with {describe(summary.arrivals)}: more and more requests were in flight, so "
            "that longer load would be served more slowly than this."
        )
    lag = summary.send_lag
    if lag is not None and lag.p99 > _LAG:
        yield (
            f"The client could not keep to its schedule: one request in a hundred was sent {1000 * lag.p99:,.0f} ms "
            "late or more, which is part of the latencies; give it a core of its own, or less load."
        )
    if summary.cpu is not None and summary.cpu > _CPU:
        yield f"The client used {summary.cpu:.0%} of a core, so that it may have noticed chunks late."
    if plan.ignore_eos and summary.short:
        yield f"{summary.short:,} answers were shorter than asked for, although --ignore-eos was given."
    fresh = plan.dataset is None and plan.trace is None and not plan.shape.prefix and plan.shape.turns == 1
    if fresh and summary.cached_tokens and summary.input_tokens and summary.cached_tokens > summary.input_tokens / 20:
        share = summary.cached_tokens / summary.input_tokens
        yield f"{share:.0%} of the input came from the prefix cache; another --seed has prompts that it does not know."
    if 0 < summary.succeeded < _FOR_P99:
        yield f"{summary.succeeded} requests have no p99 to speak of: it is their latest, or nearly."
    if plan.requests is not None and not summary.oversaturated and plan.seconds is None and plan.shape.turns == 1:
        missing = plan.requests - summary.sent
        if missing > 0 and (plan.trace or plan.dataset):
            yield f"The file has {summary.sent:,} requests, {missing:,} fewer than were asked for."


def as_json(measurement: Measurement, records: bool) -> bytes:
    """All settings and figures; with `records` each request's, too."""
    stages: list[dict[str, Any]] = []
    for stage in measurement.stages:
        value = {"summary": stage.summary, "notes": list(notes(stage.summary, measurement.plan))}
        stages.append(value | ({"requests": stage.run.outcomes} if records else {}))
    value = {
        "penstock": __version__,
        "began": measurement.began,
        "plan": measurement.plan,
        "model": measurement.model,
        "content": measurement.content,
        "stages": stages,
        "rate_found": measurement.rate_found,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def verdict(measurement: Measurement) -> str | None:
    """The answer of a search for the largest rate; None where there was none."""
    plan, tried = measurement.plan, [stage.summary.arrivals for stage in measurement.stages]
    if not plan.find_rate:
        return None
    rates = [arrivals.rate for arrivals in tried if isinstance(arrivals, Open)]
    if measurement.rate_found is None:
        return f"None of the rates that were tried meets {plan.slo} at p99; the lowest was {min(rates):.4g}/s."
    found = f"{measurement.rate_found:.4g} requests a second"
    if measurement.rate_found == max(rates):
        return f"Even the highest rate that was tried, {found}, meets {plan.slo} at p99."
    return f"The largest rate that meets {plan.slo} at p99: {found}."


def _milliseconds(latency: Distribution | None) -> list[str]:
    if latency is None:
        return [_NONE] * 6
    values = (latency.mean, latency.median, latency.p90, latency.p95, latency.p99, latency.max)
    return [f"{1000 * value:,.{1 if value >= 0.1 else 2}f}" for value in values]


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"


def _mean(total: int | None, count: int) -> str:
    return _NONE if total is None or not count else f"{total / count:,.1f}"
