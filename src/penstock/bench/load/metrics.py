"""The figures of a run. Whatever was not measured is None, never 0."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.bench.load.arrivals import Arrivals, Open
from penstock.bench.load.outcome import End, Outcome
from penstock.bench.load.run import Run, is_violation
from penstock.bench.load.saturation import keeps_up
from penstock.configuration.slo import Figure, Slo

# Share of the requests that have to be within the limits for a rate to meet them: p99 is.
MET_AT = 0.99
_ERRORS_SHOWN = 20


class Distribution(msgspec.Struct, frozen=True):
    """Seconds of something that was measured `count` times; percentiles are values that occurred (nearest rank)."""

    count: int
    mean: float
    median: float
    p90: float
    p95: float
    p99: float
    max: float


class ErrorCount(msgspec.Struct, frozen=True):
    """How often something went wrong, and what was said of it first."""

    kind: str
    count: int
    message: str
    violation: bool


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run's figures; times in seconds. Latencies are those of the requests that succeeded.

    Attributes:
        seconds: from the beginning to the end of the last request.
        sent: requests in all; each of them succeeded, failed, was cancelled or abandoned.
        violations: of `failed`, those where the server broke the protocol.
        short: requests that succeeded with fewer output tokens than were asked for.
        input_tokens, cached_tokens, output_tokens: of requests that succeeded, as the server's usage says.
        request_rate, input_token_rate, output_token_rate: these, by the run's seconds.
        in_flight, most_in_flight: requests at a time, in the mean and at most.
        tpot: (E2E - TTFT) / (n - 1).
        e2e_per_token: E2E / n, which counts the first token too.
        itl: gaps between later chunks with content, all requests' together.
        good: requests that met all service levels.
        goodput, token_goodput: these, and their output tokens, by the run's seconds.
        kept_up: whether the number of requests in flight came to rest; None where that cannot be said: of a run that
            was too short, or whose requests did not come at a rate.
        meets_slo: whether the server kept up, and p99 of every figure with a limit is within it, a failed request being
            later than any limit.
        send_lag: of the client itself, from when a request was due to when the client got to it.
        cpu: share of one core that the client used.
    """

    arrivals: Arrivals
    seconds: float
    sent: int
    succeeded: int
    failed: int
    violations: int
    cancelled: int
    abandoned: int
    short: int
    errors: list[ErrorCount]
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    request_rate: float | None
    input_token_rate: float | None
    output_token_rate: float | None
    in_flight: float | None
    most_in_flight: int
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    e2e_per_token: Distribution | None
    good: int | None
    goodput: float | None
    token_goodput: float | None
    kept_up: bool | None
    meets_slo: bool | None
    oversaturated: bool
    send_lag: Distribution | None
    cpu: float | None


def percentile(ordered: Sequence[float] | NDArray[np.floating], share: float) -> float:
    """The smallest of some ordered values that at least `share` of all do not exceed (nearest rank)."""
    return float(ordered[_rank(len(ordered), share) - 1])


def _rank(count: int, share: float) -> int:
    # Rounded, since 0.99 * 100 is a little more than 99.
    return max(1, math.ceil(round(share * count, 9)))


def distribution(
    values: Sequence[float] | NDArray[np.floating], counts: NDArray[np.integer] | None = None
) -> Distribution | None:
    """Figures of some values, None where there are none; `counts` says how often each occurred, once without."""
    if not len(values):
        return None
    ordered = np.asarray(values, dtype=np.float64)
    order = np.argsort(ordered)
    ordered = ordered[order]
    up_to = np.arange(1, len(ordered) + 1) if counts is None else np.cumsum(counts[order])
    count = int(up_to[-1])
    mean = float(ordered.mean() if counts is None else (ordered * counts[order]).sum() / count)
    ranks = np.searchsorted(up_to, [_rank(count, share) for share in (0.5, 0.9, 0.95, 0.99)])
    median, p90, p95, p99 = map(float, ordered[ranks])
    return Distribution(count, mean, median, p90, p95, p99, float(ordered[-1]))


def summarize(run: Run, slo: Slo | None) -> Summary:
    """All figures of a run."""
    outcomes, seconds = run.outcomes, run.seconds
    served = [outcome for outcome in outcomes if outcome.end is End.OK]
    ends = Counter(outcome.end for outcome in outcomes)
    good = None if slo is None else [outcome for outcome in served if is_good(slo, outcome)]
    output = _total([outcome.output_tokens for outcome in served])
    tokens = _total([outcome.input_tokens for outcome in served])
    figures = {name: figure_values(served, name) for name in ("ttft", "tpot", "e2e", "e2e_per_token")}
    itl = distribution(run.gaps, None if run.gap_counts is None else np.asarray(run.gap_counts))
    flight = in_flight(outcomes)
    kept_up = _kept_up(outcomes) if isinstance(run.arrivals, Open) else None
    return Summary(
        arrivals=run.arrivals,
        seconds=seconds,
        sent=len(outcomes),
        succeeded=len(served),
        failed=ends[End.FAILED],
        violations=sum(map(is_violation, outcomes)),
        cancelled=ends[End.CANCELLED],
        abandoned=ends[End.ABANDONED],
        short=sum((outcome.output_tokens or 0) < outcome.asked * outcome.choices for outcome in served),
        errors=count_errors(outcomes),
        input_tokens=tokens,
        cached_tokens=_total([outcome.cached_tokens for outcome in served]),
        output_tokens=output,
        request_rate=_rate(len(served), seconds),
        input_token_rate=_rate(tokens, seconds),
        output_token_rate=_rate(output, seconds),
        in_flight=_rate(sum(outcome.ended - outcome.started for outcome in outcomes), seconds),
        most_in_flight=max((count for _, count in flight), default=0),
        ttft=distribution(figures["ttft"]),
        tpot=distribution(figures["tpot"]),
        itl=itl,
        e2e=distribution(figures["e2e"]),
        e2e_per_token=distribution(figures["e2e_per_token"]),
        good=None if good is None else len(good),
        goodput=None if good is None else _rate(len(good), seconds),
        token_goodput=None if good is None else _rate(sum(outcome.output_tokens or 0 for outcome in good), seconds),
        kept_up=kept_up,
        meets_slo=None if slo is None else kept_up is not False and meets(slo, run, figures, itl),
        oversaturated=run.oversaturated,
        send_lag=distribution([outcome.lag for outcome in outcomes]),
        cpu=_rate(run.cpu_seconds, seconds),
    )


def is_good(slo: Slo, outcome: Outcome) -> bool:
    """Whether a request succeeded within all limits; every gap between its chunks must be within that of `itl`."""
    figures: dict[Figure, float | None] = {
        "ttft": outcome.ttft,
        "tpot": outcome.tpot,
        "itl": outcome.longest_gap,
        "e2e": outcome.e2e,
    }
    return outcome.end is End.OK and not slo.misses(figures)


def meets(slo: Slo, run: Run, figures: dict[str, list[float]], itl: Distribution | None) -> bool:
    """Whether each figure's p99 is within its limit; what failed is later than any, what was cancelled is left out."""
    failed = sum(outcome.end is End.FAILED for outcome in run.outcomes)
    served = sum(outcome.end is End.OK for outcome in run.outcomes)
    if run.oversaturated or not served or failed > (1 - MET_AT) * (served + failed):
        return False
    for name, limit in slo.limits().items():
        found = itl if name == "itl" else distribution([*figures[name], *[math.inf] * failed])
        if found is not None and found.p99 > limit:
            return False
    return True


def figure_values(outcomes: Sequence[Outcome], name: str) -> list[float]:
    """What was measured of a figure of requests."""
    return [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]


def in_flight(outcomes: Sequence[Outcome]) -> list[tuple[float, int]]:
    """From each time on, how many requests were in flight."""
    # Of changes at one time, ends come first: they make room for what begins.
    changes = sorted([(o.ended, -1) for o in outcomes] + [(o.started, 1) for o in outcomes])
    return list(zip((time for time, _ in changes), accumulate(change for _, change in changes), strict=True))


def count_errors(outcomes: Sequence[Outcome]) -> list[ErrorCount]:
    """Failures by kind, the most frequent first, each with what was said of its first."""
    failed = [outcome for outcome in outcomes if outcome.end is End.FAILED and outcome.kind]
    first = {outcome.kind: outcome for outcome in reversed(failed)}
    counts = Counter(outcome.kind for outcome in failed).most_common(_ERRORS_SHOWN)
    return [ErrorCount(kind or "", n, first[kind].message or "", is_violation(first[kind])) for kind, n in counts]


def _kept_up(outcomes: Sequence[Outcome]) -> bool | None:
    return keeps_up([outcome.scheduled for outcome in outcomes], [outcome.ended for outcome in outcomes])


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or not seconds else amount / seconds
