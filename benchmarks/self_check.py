"""Whether a server's own figures are what a client measures, under load, with cancellations.

A server is started, and a client in this process keeps `--streams` requests under way, token ids in and a stream out.
In a second part it leaves `--cancel` of them in the middle of their answers. Then the counts must be the same to the
last request and token; TTFT and ITL at p50, p95 and p99 in `/v1/stats` must be within 5% or 2 ms of what the client
measured of the very same requests; and each of these must lie in the same bucket of Prometheus' histogram, or the next.

Of requests that the client leaves, the server may have sent more than was read, so that only their number, their
prompts and their first tokens are compared. TTFT counts from when the client wrote its request.
"""

import asyncio
import json
import random
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import reporting
import serving
from prometheus_client.parser import text_string_to_metric_families

from penstock.bench.load.address import parse_address
from penstock.bench.load.answer import Answer
from penstock.bench.load.client import Client
from penstock.bench.load.metrics import percentile
from penstock.observability.histogram import SECONDS

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# What no request takes, so that every completed one is good, and its tokens are counted apart.
OPTIONS = ("--slo", "e2e=600s")
# What the comparison allows, as a share and in seconds; the larger one counts.
WITHIN, AT_LEAST = 0.05, 0.002


@dataclass(frozen=True)
class Load:
    """What is asked of the server.

    Attributes:
        left: tokens of answers that are left: so many that they are not complete by then, whatever is under way between
            server and client.
    """

    streams: int
    requests: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    cancel: float = 0.0
    seed: int = 0
    vocabulary: int = 300
    left: int = 1000


@dataclass
class Seen:
    """What the client saw."""

    completed: int = 0
    cancelled: int = 0
    first_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    read_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Count:
    """Something that both have counted; `exact` unless the server may have counted more."""

    name: str
    client: int
    server: float
    exact: bool = True

    @property
    def agrees(self) -> bool:
        """Whether they do."""
        return self.server == self.client if self.exact else self.server >= self.client


@dataclass(frozen=True)
class Time:
    """A quantile that both have measured, and in which buckets of the histogram they have it."""

    name: str
    client: float
    server: float
    buckets: tuple[int, int]

    @property
    def agrees(self) -> bool:
        """Whether they do."""
        return abs(self.server - self.client) <= max(AT_LEAST, WITHIN * self.client)

    @property
    def bucket_agrees(self) -> bool:
        """Whether the histogram has it in the same bucket, or the next."""
        return abs(self.buckets[0] - self.buckets[1]) <= 1


async def put_load(url: str, load: Load, seen: Seen) -> None:
    """Put load on the server."""
    client = Client(parse_address(url))
    chance = random.Random(load.seed)
    numbers = iter(range(load.requests))

    async def stream() -> None:
        for _ in numbers:
            await _ask(client, load, chance, seen)

    try:
        await asyncio.gather(*(stream() for _ in range(load.streams)))
    finally:
        client.close()


async def _ask(client: Client, load: Load, chance: random.Random, seen: Seen) -> None:
    prompt = chance.choices(range(10, load.vocabulary), k=chance.randint(*load.prompt))
    tokens = chance.randint(*load.output)
    leave = None
    if chance.random() < load.cancel:
        leave, tokens = chance.randint(1, tokens), load.left
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        # Chunks are told by their ids, whether they have text or none.
        "return_token_ids": True,
    }
    answer = Answer(cancel_after=leave)
    exchange = await client.fetch("POST", "/v1/completions", json.dumps(body).encode(), answer.feed)
    if exchange.status != 200:
        raise SystemExit(f"The server answered {exchange.status}: {exchange.body.decode()}")
    assert exchange.sent is not None and answer.first is not None
    seen.first_tokens += 1
    seen.prompt_tokens += len(prompt)
    seen.ttft.append(answer.first - exchange.sent)
    seen.itl += answer.gaps
    if answer.left:
        seen.cancelled += 1
        seen.read_tokens += answer.chunks
        return
    answer.end()
    if answer.violation is not None or answer.usage is None:
        raise SystemExit(f"The answer is not what the API promises: {answer.violation}")
    seen.completed += 1
    seen.output_tokens += answer.usage.completion_tokens
    seen.read_tokens += answer.usage.completion_tokens


def metrics_of(text: str) -> dict[str, float]:
    """Each metric's sum, and what has labels by them."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def compare_counts(seen: Seen, before: dict[str, float], after: dict[str, float]) -> list[Count]:
    """What both have counted between two scrapes."""

    def grown(name: str) -> float:
        return after[name] - before[name]

    def ended(outcome: str) -> float:
        return grown(f"penstock_requests_total{{endpoint=completions,outcome={outcome}}}")

    whole = not seen.cancelled
    return [
        Count("requests", seen.completed + seen.cancelled, grown("penstock_requests_total")),
        Count("completed", seen.completed, ended("completed")),
        Count("cancelled", seen.cancelled, ended("cancelled")),
        Count("prompt tokens", seen.prompt_tokens, grown("penstock_prompt_tokens_total")),
        Count("output tokens of completed requests", seen.output_tokens, grown("penstock_good_tokens_total")),
        Count("output tokens", seen.read_tokens, grown("penstock_generation_tokens_total"), whole),
        Count("first tokens", seen.first_tokens, grown("penstock_time_to_first_token_seconds_count")),
        Count("gaps", len(seen.itl), grown("penstock_inter_token_latency_seconds_count"), whole),
        Count("times per token", seen.completed, grown("penstock_time_per_output_token_seconds_count")),
        Count("durations", seen.completed, grown("penstock_request_duration_seconds_count")),
        Count("left in flight", 0, after["penstock_requests_in_flight"]),
    ]


def compare_times(seen: Seen, stats: dict[str, dict[str, float]], metrics: dict[str, float]) -> list[Time]:
    """What both have measured since the server's start; `stats` is `life.latency` of `/v1/stats`."""
    times = []
    for figure, values, histogram in (
        ("ttft", seen.ttft, "penstock_time_to_first_token_seconds"),
        ("itl", seen.itl, "penstock_inter_token_latency_seconds"),
    ):
        ordered = sorted(values)
        for name, share in SHARES.items():
            ours = percentile(ordered, share)
            buckets = (bisect_left(SECONDS, ours), _bucket(metrics, histogram, share))
            times.append(Time(f"{figure} {name}", ours, stats[figure][name], buckets))
    return times


def _bucket(metrics: dict[str, float], histogram: str, share: float) -> int:
    """The place of the bucket that has a quantile."""
    rank = share * metrics[f"{histogram}_count"]
    for place, bound in enumerate(SECONDS):
        if metrics[f"{histogram}_bucket{{le={bound!r}}}"] >= rank:
            return place
    return len(SECONDS)


def check(server: serving.Server, loads: Sequence[Load]) -> tuple[list[tuple[str, list[Count]]], list[Time]]:
    """Put all loads on a server that has done nothing so far, and compare."""
    counts, all_seen = [], Seen()
    for load in loads:
        before, seen = metrics_of(server.get("/metrics")[1]), Seen()
        asyncio.run(put_load(f"http://{serving.HOST}:{server.port}", load, seen))
        after = _at_rest(server)
        counts.append((f"{load.cancel:.0%} left", compare_counts(seen, before, after)))
        all_seen.ttft += seen.ttft
        all_seen.itl += seen.itl
    stats = json.loads(server.get("/v1/stats")[1])["life"]["latency"]
    return counts, compare_times(all_seen, stats, metrics_of(server.get("/metrics")[1]))


def _at_rest(server: serving.Server) -> dict[str, float]:
    """The metrics once the server has noticed that the last client has gone."""
    for _ in range(500):
        metrics = metrics_of(server.get("/metrics")[1])
        if not metrics["penstock_requests_in_flight"]:
            break
    return metrics


def main() -> None:
    """Run the check; the exit status is 1 where anything disagrees."""
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="as for penstock serve; prompts are token ids")
    parser.add_argument("--streams", type=int, default=32, help="requests under way at a time")
    parser.add_argument("--requests", type=int, default=320, help="of each part")
    parser.add_argument("--cancel", type=float, default=0.3, help="share that is left, in the second part")
    options, others = parser.parse_known_args()
    shape = {"streams": options.streams, "requests": options.requests, "prompt": (64, 128), "output": (64, 192)}
    loads = [Load(**shape), Load(**shape, cancel=options.cancel, seed=1)]
    with serving.serving(options.model, [*OPTIONS, "--log-level", "warning", *others]) as server:
        server.wait_until_ready()
        counts, times = check(server, loads)
    good = True
    for title, found in counts:
        rows = [(each.name, each.client, int(each.server), "yes" if each.agrees else "NO") for each in found]
        reporting.report(f"Counts, {title}", ("", "client", "server", "agrees"), rows)
        good = good and all(each.agrees for each in found)
    header = ("", "client, ms", "server, ms", "within 5% or 2 ms", "bucket, client", "bucket, server", "within one")
    rows = [
        (
            each.name, 1000 * each.client, 1000 * each.server, "yes" if each.agrees else "NO", *each.buckets,
            "yes" if each.bucket_agrees else "NO",
        )
        for each in times
    ]  # fmt: skip
    reporting.report("Times, both parts together", header, rows)
    good = good and all(each.agrees and each.bucket_agrees for each in times)
    print("\nThe server and its client agree." if good else "\nThe server and its client DISAGREE.")
    sys.exit(not good)


if __name__ == "__main__":
    main()
