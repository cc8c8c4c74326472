"""The same figures by each tool's own definitions: as it reports them, and of requests that Penstock's client measured.

Two tools that call a figure by one name may mean different things. vLLM times a request from when its client got to it,
GuideLLM from when its headers were written; Penstock from when it was due. Inter-token latency is to vLLM, as to
Penstock, every gap between chunks, to GuideLLM one mean for each request. Times here are in milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any

Figures = dict[str, float]
# Share of the input that may come from the prefix cache: by chance, or by how a tool warms up.
MOST_CACHED = 0.02


@dataclass(frozen=True)
class Request:
    """A request that succeeded, as Penstock's client noted it; seconds from the beginning of its run."""

    started: float
    sent: float
    first: float
    last: float
    chunks: int
    output_tokens: int

    @property
    def streaming(self) -> float:
        """Seconds from the first chunk to the last."""
        return self.last - self.first


@dataclass(frozen=True)
class OurRun:
    """A run of `penstock bench serve --json FILE --records`: its requests, and what it says of all of them.

    Attributes:
        seconds: from when the first request was due to the end of the last.
        median_gap: between chunks, in milliseconds.
        input_tokens: of a request, in the mean.
    """

    requests: list[Request]
    seconds: float
    median_gap: float
    input_tokens: float


@dataclass(frozen=True)
class TheirRun:
    """Another tool's run.

    Attributes:
        arrivals: when each request was sent, in seconds after the first.
        lead: seconds from what the tool calls the beginning to the first request: both draw a gap before it.
        input_tokens: of a request, in the mean.
    """

    figures: Figures
    arrivals: list[float]
    lead: float
    input_tokens: float


def read_ours(report: dict[str, Any], expected: int, output_tokens: int) -> OurRun:
    """What Penstock's client has measured. Raises ValueError where requests failed, or were not what was asked."""
    (stage,) = report["stages"]
    summary, outcomes = stage["summary"], stage["requests"]
    _check(sum(outcome["end"] == "ok" for outcome in outcomes), expected)
    served = [Request(**{field.name: outcome[field.name] for field in fields(Request)}) for outcome in outcomes]
    _check_lengths([request.output_tokens for request in served], output_tokens)
    if (summary["cached_tokens"] or 0) > MOST_CACHED * summary["input_tokens"]:
        raise ValueError(f"{summary['cached_tokens']} input tokens came from the server's prefix cache")
    return OurRun(served, summary["seconds"], 1000 * summary["itl"]["median"], summary["input_tokens"] / expected)


def by_vllm(run: OurRun, lead: float) -> Figures:
    """Our run by the definitions of `vllm bench serve`.

    TTFT begins before there is a connection. Every gap between chunks is one ITL, of all requests together. TPOT is one
    mean for each request, without its first token.
    """
    ttft = [1000 * (request.first - request.started) for request in run.requests]
    gaps = sum(request.chunks - 1 for request in run.requests)
    return {
        "TTFT median, ms": median(ttft),
        "TTFT mean, ms": fmean(ttft),
        "ITL median, ms": run.median_gap,
        "ITL mean, ms": 1000 * sum(request.streaming for request in run.requests) / gaps,
        "TPOT mean, ms": 1000 * fmean(request.streaming / (request.output_tokens - 1) for request in run.requests),
        **_throughput(run, lead),
    }


def read_vllm(result: dict[str, Any], expected: int, output_tokens: int) -> TheirRun:
    """The file of `--save-result --save-detailed`. Raises ValueError where requests failed or answers were short."""
    _check(result["completed"], expected)
    _check_lengths(result["output_lens"], output_tokens)
    names = {"TTFT median": "median_ttft_ms", "TTFT mean": "mean_ttft_ms", "ITL median": "median_itl_ms"}
    names |= {"ITL mean": "mean_itl_ms", "TPOT mean": "mean_tpot_ms"}
    figures = {f"{name}, ms": float(result[field]) for name, field in names.items()}
    figures |= {"requests/s": result["request_throughput"], "output tokens/s": result["output_throughput"]}
    starts = result["start_times"]
    ended = max(start + latency for start, latency in zip(starts, result["latencies"], strict=True))
    lead = max(0.0, result["duration"] - (ended - min(starts)))
    return TheirRun(figures, _after_first(starts), lead, fmean(result["input_lens"]))


def by_guidellm(run: OurRun, lead: float) -> Figures:
    """Our run by GuideLLM's definitions.

    TTFT begins when a connection is there. ITL is one mean for each request, (last - first) / (n - 1), which counts as
    often as the request has such tokens. TPOT is from the request's beginning, and counts the first token.
    """
    ttft = [1000 * (request.first - request.sent) for request in run.requests]
    later = [request.output_tokens - 1 for request in run.requests]
    means = [1000 * request.streaming / tokens for request, tokens in zip(run.requests, later, strict=True)]
    tokens = sum(request.output_tokens for request in run.requests)
    return {
        "TTFT median, ms": median(ttft),
        "TTFT mean, ms": fmean(ttft),
        "ITL median, ms": weighted_median(means, later),
        "ITL mean, ms": 1000 * sum(request.streaming for request in run.requests) / sum(later),
        "TPOT mean, ms": 1000 * sum(request.last - request.sent for request in run.requests) / tokens,
        **_throughput(run, lead),
    }


def read_guidellm(report: dict[str, Any], expected: int, output_tokens: int) -> TheirRun:
    """The file of `--output kind=json`. Raises ValueError where requests failed or answers were short."""
    (benchmark,) = report["benchmarks"]
    metrics, requests = benchmark["metrics"], benchmark["requests"]["successful"]
    _check(len(requests), expected)
    _check_lengths([request["output_tokens"] for request in requests], output_tokens)
    figures: Figures = {}
    for name, metric in (("TTFT", "time_to_first_token_ms"), ("ITL", "inter_token_latency_ms")):
        figures |= {f"{name} {kind}, ms": metrics[metric]["successful"][kind] for kind in ("median", "mean")}
    figures["TPOT mean, ms"] = metrics["time_per_output_token_ms"]["successful"]["mean"]
    figures["requests/s"] = metrics["requests_per_second"]["successful"]["mean"]
    figures["output tokens/s"] = metrics["output_tokens_per_second"]["successful"]["mean"]
    starts = [request["request_start_time"] for request in requests]
    lead = min(starts) - benchmark["scheduler_metrics"]["measure_start_time"]
    return TheirRun(figures, _after_first(starts), lead, fmean(request["prompt_tokens"] for request in requests))


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The smallest value that at least half of the weight does not exceed."""
    half, reached = sum(weights) / 2, 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        reached += weight
        if reached >= half:
            return value
    raise ValueError("There is no median of nothing.")


def _throughput(run: OurRun, lead: float) -> Figures:
    """To both tools it is what succeeded, over the time from the beginning to the end of the last request."""
    tokens, seconds = sum(request.output_tokens for request in run.requests), lead + run.seconds
    return {"requests/s": len(run.requests) / seconds, "output tokens/s": tokens / seconds}


def _after_first(times: Sequence[float]) -> list[float]:
    return [time - min(times) for time in sorted(times)]


def _check(succeeded: int, expected: int) -> None:
    if succeeded != expected:
        raise ValueError(f"{succeeded} of {expected} requests succeeded")


def _check_lengths(lengths: Sequence[int], expected: int) -> None:
    if set(lengths) != {expected}:
        raise ValueError(f"answers have {min(lengths)} to {max(lengths)} tokens instead of {expected}")
