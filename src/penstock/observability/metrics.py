"""Prometheus metrics of the API process.

Requests are measured here, where users see them; the engine's own figures come from its newest load snapshot when a
scrape asks. Labels take values from fixed sets only, so the number of series is bounded.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.core.events import LoadSnapshot
from penstock.core.plan import FinishReason

Endpoint = Literal["completions", "chat", "embeddings", "messages", "responses"]
Outcome = Literal["completed", "rejected", "failed", "cancelled", "refused", "timed_out"]
Refusal = Literal["queue_full", "memory_pressure", "slo_unreachable", "bodies_full"]

ENDPOINTS: tuple[Endpoint, ...] = ("completions", "chat", "embeddings", "messages", "responses")
OUTCOMES: tuple[Outcome, ...] = ("completed", "rejected", "failed", "cancelled", "refused", "timed_out")
REFUSALS: tuple[Refusal, ...] = ("queue_full", "memory_pressure", "slo_unreachable", "bodies_full")
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")

# Seconds, from a millisecond to ten minutes.
BUCKETS = tuple(
    step * scale
    for scale in (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
    for step in (1.0, 1.5, 2.5, 4.0, 6.0, 8.0)
    if step * scale <= 600.0
)


class Histogram:
    """Counts by bucket. Much cheaper than the client library's, and enough for one thread."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add one value."""
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """The histogram in Prometheus' cumulative form."""
        buckets, total = [], 0
        for bound, count in zip((*map(_bound, BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum)


class Storage(Protocol):
    """What is known of the disk under a server's data."""

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be kept now."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Operations that failed, by why."""


class Metrics:
    """All series of one server."""

    def __init__(self, load: Callable[[], LoadSnapshot], storage: Storage | None = None) -> None:
        """`load` gives the engine's newest snapshot; `storage` is None where nothing is kept."""
        self._storage = storage
        self.time_to_first_token = Histogram()
        self.inter_token_latency = Histogram()
        self.request_duration = Histogram()
        self.requests = {(endpoint, outcome): 0 for endpoint in ENDPOINTS for outcome in OUTCOMES}
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.refused: dict[str, int] = dict.fromkeys(REFUSALS, 0)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.in_flight = 0
        self.batch_lines = {"completed": 0, "failed": 0}
        self.batch_lines_running = 0
        self._load = load
        self._registry = CollectorRegistry()
        self._registry.register(_Exporter(self.families))

    def begin(self, endpoint: Endpoint) -> "RequestMeter":
        """Start to measure a request that has just arrived."""
        return RequestMeter(self, endpoint)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """Everything, as metric families."""
        requests = CounterMetricFamily(
            "penstock_requests", "Requests that have ended, by how.", labels=("endpoint", "outcome")
        )
        for labels, count in self.requests.items():
            requests.add_metric(labels, count)
        finished = CounterMetricFamily("penstock_samples_finished", "Samples by finish reason.", labels=("reason",))
        for reason, count in self.finished.items():
            finished.add_metric((reason,), count)
        refused = CounterMetricFamily(
            "penstock_requests_refused", "Requests that were not taken on under load, by why.", labels=("reason",)
        )
        for why, count in self.refused.items():
            refused.add_metric((why,), count)
        yield requests
        yield finished
        yield refused
        yield _counter("penstock_prompt_tokens", "Tokens of the prompts of accepted requests.", self.prompt_tokens)
        yield _counter("penstock_generation_tokens", "Tokens sent to clients.", self.generation_tokens)
        yield _gauge("penstock_requests_in_flight", "Requests that have not ended.", self.in_flight)
        lines = CounterMetricFamily("penstock_batch_lines", "Requests of batches that are done.", labels=("outcome",))
        for outcome, count in self.batch_lines.items():
            lines.add_metric((outcome,), count)
        yield lines
        yield _gauge("penstock_batch_lines_running", "Requests of batches under way.", self.batch_lines_running)
        yield self.time_to_first_token.family(
            "penstock_time_to_first_token_seconds", "From a request's arrival to its first output."
        )
        yield self.inter_token_latency.family(
            "penstock_inter_token_latency_seconds", "Between consecutive outputs of a request."
        )
        yield self.request_duration.family(
            "penstock_request_duration_seconds", "From a request's arrival to its last output."
        )
        if self._storage is not None:
            failing = int(self._storage.failure is not None)
            yield _gauge("penstock_storage_failing", "1 while the disk under the server's data takes nothing.", failing)
            failures = CounterMetricFamily(
                "penstock_storage_failures", "Operations that the disk has failed, by why.", labels=("reason",)
            )
            for why, count in self._storage.failures.items():
                failures.add_metric((why,), count)
            yield failures
        yield from _engine_families(self._load())


class RequestMeter:
    """Measures one request."""

    __slots__ = ("_arrived", "_ended", "_endpoint", "_last", "_metrics", "time_to_first_token")

    def __init__(self, metrics: Metrics, endpoint: Endpoint) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        self._arrived = time.perf_counter()
        self._last = 0.0
        self._ended = False
        self.time_to_first_token: float | None = None
        metrics.in_flight += 1

    def accepted(self, prompt_tokens: int) -> None:
        """The request is valid and goes to the engine."""
        self._metrics.prompt_tokens += prompt_tokens

    def tokens(self, count: int) -> None:
        """An output of `count` tokens has arrived."""
        if not count:
            return
        now = time.perf_counter()
        metrics = self._metrics
        metrics.generation_tokens += count
        if self._last:
            metrics.inter_token_latency.observe(now - self._last)
        else:
            self.time_to_first_token = now - self._arrived
            metrics.time_to_first_token.observe(self.time_to_first_token)
        self._last = now

    def finished(self, reason: FinishReason) -> None:
        """A sample has ended."""
        self._metrics.finished[reason] += 1

    def end(self, outcome: Outcome) -> float:
        """The request has ended; only the first call counts. Returns the seconds since its arrival."""
        duration = time.perf_counter() - self._arrived
        if not self._ended:
            self._ended = True
            metrics = self._metrics
            metrics.in_flight -= 1
            metrics.requests[self._endpoint, outcome] += 1
            if outcome == "completed":
                metrics.request_duration.observe(duration)
        return duration


class _Exporter(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        # Nothing to compare with: this collector is its registry's only one.
        return ()


def _engine_families(load: LoadSnapshot) -> Iterable[Metric]:
    yield _gauge("penstock_requests_waiting", "Sequences that wait for their first step (queue depth).", load.waiting)
    yield _gauge("penstock_requests_waiting_tokens", "Prompt tokens of waiting sequences.", load.waiting_tokens)
    yield _gauge("penstock_requests_running", "Sequences in the running batch.", load.running)
    yield _gauge("penstock_kv_blocks", "KV blocks of the pool.", load.blocks_total)
    yield _gauge("penstock_kv_blocks_used", "KV blocks that running sequences hold.", load.blocks_used)
    yield _gauge("penstock_kv_blocks_cached", "KV blocks kept for prefix hits only.", load.blocks_cached)
    yield _gauge("penstock_kv_blocks_kept", "KV blocks that clients want kept for a time.", load.blocks_kept)
    yield _gauge("penstock_kv_blocks_free", "KV blocks that hold nothing.", load.blocks_free)
    yield _counter("penstock_engine_restarts", "Starts of the engine after its first.", load.restarts)
    yield _counter("penstock_engine_steps", "Steps of the engine.", load.step)
    yield _counter("penstock_prefill_tokens", "Prompt tokens computed.", load.prefill_tokens)
    yield _counter("penstock_decode_tokens", "Output tokens computed.", load.decode_tokens)
    yield _counter(
        "penstock_prefix_cache_queried_tokens",
        "Prompt tokens looked up in the prefix cache.",
        load.prefix_queried_tokens,
    )
    yield _counter("penstock_prefix_cache_hit_tokens", "Prompt tokens found there.", load.prefix_hit_tokens)
    yield _counter("penstock_preemptions", "Sequences that had to give up their KV blocks.", load.preemptions)
    yield _counter("penstock_recomputed_tokens", "Tokens computed again after preemption.", load.recomputed_tokens)


def _counter(name: str, text: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: int) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _bound(seconds: float) -> str:
    return repr(round(seconds, 6))
