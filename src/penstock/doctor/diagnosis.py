"""All that is said of a running server, and of what has changed since an earlier diagnosis. Pure."""

from collections.abc import Iterator

import msgspec

from penstock.doctor.finding import Evidence, Finding
from penstock.doctor.observation import Observation
from penstock.doctor.resources import HELD, Bottleneck, Resource, bottleneck, resources
from penstock.doctor.role_rules import role_findings
from penstock.doctor.sheet import SheetRow, judge_sheet
from penstock.observability.stats import Quantiles, SloFigures

# The share of ended requests from which on it is worth a word that clients left.
_MANY_LEFT = 0.1
# Tokens of prompts for each of an answer, most of them from the cache: the whole history is sent again each turn.
_HISTORY = 20.0
_RESENT = 0.7


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared before and after a change: rates by second of the window, latencies of the last minute."""

    requests: float
    output_tokens: float
    prompt_tokens: float
    goodput: float | None
    attainment: float | None
    cost_per_million_tokens: float | None
    latency: dict[str, Quantiles]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `penstock doctor --url`.

    Attributes:
        url, model, version: of the server.
        seconds: for how long it was looked at.
        slo: the service levels that goodput is about, None where there are none.
        bottleneck: what bounds it.
        resources: everything that can run out.
        sheet: the eleven rows.
        findings: what else was noticed.
    """

    url: str
    model: str | None
    version: str
    seconds: float
    slo: dict[str, float] | None
    figures: Figures
    bottleneck: Bottleneck
    resources: tuple[Resource, ...]
    sheet: tuple[SheetRow, ...]
    findings: tuple[Finding, ...]


def diagnose(url: str, seen: Observation) -> Diagnosis:
    """Everything that follows from an observation."""
    found = resources(seen)
    return Diagnosis(
        url=url,
        model=seen.model,
        version=seen.version,
        seconds=seen.seconds,
        slo=seen.settings.slo,
        figures=_figures(seen),
        bottleneck=bottleneck(seen, found),
        resources=found,
        sheet=judge_sheet(seen),
        findings=tuple(_findings(seen)),
    )


def _figures(seen: Observation) -> Figures:
    slo: SloFigures | None = seen.slo
    return Figures(
        requests=sum(seen.requests.values()) / seen.seconds,
        output_tokens=seen.output_tokens / seen.seconds,
        prompt_tokens=seen.prompt_tokens / seen.seconds,
        goodput=None if slo is None else slo.goodput,
        attainment=None if slo is None else slo.attainment,
        cost_per_million_tokens=seen.cost_per_million_tokens,
        latency={name: getattr(seen.latency, name) for name in seen.latency.__struct_fields__},
    )


def _findings(seen: Observation) -> Iterator[Finding]:
    """What belongs to no row of the sheet."""
    if (devices := seen.settings.simulated) is not None:
        yield Finding(
            subject="simulation",
            layer="L3",
            level="note",
            figure=f"pretends to be {devices}",
            meaning="Nothing is computed, and tokens are made up; steps take the time that `penstock plan` estimates.",
            evidence=(Evidence(devices, "settings: simulated"),),
        )
    yield from _engine(seen)
    yield from _waits(seen)
    yield from role_findings(seen)
    yield from _clients(seen)


def _engine(seen: Observation) -> Iterator[Finding]:
    if not seen.ready or seen.restarts:
        yield Finding(
            subject="engine",
            layer="L3",
            level="problem",
            figure="not ready" if not seen.ready else f"started again {seen.restarts} times",
            meaning="It ended, and what it computed is computed again."
            if seen.ready
            else f"Requests wait or are refused: {seen.obstacle}.",
            advice="The server's log has the cause.",
            evidence=(Evidence(str(seen.ready).lower(), "ready"), Evidence(str(seen.restarts), "restarts")),
        )
    elif not seen.steps.steps and seen.last.waiting and seen.first.waiting:
        yield Finding(
            subject="engine",
            layer="L4a",
            level="problem",
            figure=f"{seen.last.waiting} sequences wait, and no step was made",
            meaning="The device is idle with a full queue: the engine is paused, or hangs.",
            advice="Look at /health/ready, and at the admin socket's /invariants; POST /pause lets it go on.",
            evidence=(Evidence(f"0 steps in {seen.seconds:.1f} s", "steps.steps"),),
        )
    failed = seen.requests.get("failed", 0)
    if failed:
        yield Finding(
            subject="failures",
            layer="L3",
            level="warning",
            figure=f"{failed} requests failed",
            meaning="They were computed in part, and their clients got an error.",
            advice="The server's log has the causes.",
            evidence=(Evidence(str(failed), "requests: failed"),),
        )


# Reasons to wait that no row is about.
_WAITS = {
    "share": "its tenant's share of the steps; a larger weight of its key gives more",
    "place": "a place in the batch that is not left to other tenants",
    "prefix": "a prefix that another request was computing, to find it in the cache then",
    "scores": "scores of others' prompts; a step computes a bounded number of them",
    "background": "a time without other requests, as batches do",
}


def _waits(seen: Observation) -> Iterator[Finding]:
    for wait, seconds in seen.steps.waited_for().items():
        if wait not in _WAITS or seconds / seen.seconds < HELD:
            continue
        yield Finding(
            subject=f"waits for {wait}",
            layer="L5" if wait in ("share", "place") else "L4b",
            level="note",
            figure=f"{min(1.0, seconds / seen.seconds):.0%} of the time",
            meaning=f"The next request waited for {_WAITS[wait]}.",
            evidence=(Evidence(f"{seconds:.2f} s of {seen.seconds:.1f} s", f"steps.held: {wait}"),),
        )


def _clients(seen: Observation) -> Iterator[Finding]:
    ended, left = sum(seen.requests.values()), seen.requests.get("cancelled", 0)
    if ended and left / ended >= _MANY_LEFT:
        yield Finding(
            subject="clients that leave",
            layer="L6",
            level="note",
            figure=f"{left} of {ended} requests",
            meaning="What was computed for them is lost; clients leave when they wait for too long, or do not read.",
            advice="Compare their time-out with the latencies; --request-timeout ends requests in time.",
            evidence=(Evidence(f"{left} of {ended}", "requests: cancelled"),),
        )
    hits = seen.hits or 0.0
    if seen.output_tokens and seen.prompt_tokens > _HISTORY * seen.output_tokens and hits >= _RESENT:
        yield Finding(
            subject="history",
            layer="L6",
            level="note",
            figure=f"{seen.prompt_tokens / seen.output_tokens:.0f} tokens in for one out, {hits:.0%} of them cached",
            meaning="Clients send the same long beginnings again and again; the cache spares computing them, not "
            "receiving and tokenizing.",
            advice="/v1/responses with previous_response_id keeps the history here.",
            evidence=(
                Evidence(f"{seen.prompt_tokens:,} and {seen.output_tokens:,}", "prompt_tokens, output_tokens"),
                Evidence(f"{seen.hit_tokens:,} of {seen.queried_tokens:,}", "prefix_hit_tokens, prefix_queried_tokens"),
            ),
        )
    rejected = seen.requests.get("rejected", 0)
    if ended and rejected / ended >= _MANY_LEFT:
        yield Finding(
            subject="requests that cannot be served",
            layer="L6",
            level="note",
            figure=f"{rejected} of {ended} requests",
            meaning="Their fields, or their length, are not what the server takes; each answer says why.",
            evidence=(Evidence(f"{rejected} of {ended}", "requests: rejected"),),
        )
