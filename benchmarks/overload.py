"""Overload: what is left of a server's goodput at several times the load that it can serve.

Goodput is requests per second that meet both service levels (--ttft, --tpot). First the peak is measured: the best
goodput at growing numbers of streams at a time. Then requests come at --factor times that rate, as a Poisson process
that waits for nobody, for --seconds; then at half the peak, until --recovery seconds have passed. The peak is measured
before and after, with as many streams as were best: the mean of the two is what goodput is compared with, since
machines that others use too become faster and slower, and the best of several figures has luck in it.

Times count from when a request was due; with --retries from when the try that was served was due: a refused client
comes back after as long as Retry-After says, up to so many times. A refusal's time is from connecting to its last
byte. Who makes such a load has no time to look at a refusal when it comes: so it is also timed by a process of its own,
which asks --probes times a second in between, and leaves again where it is served. Both share the cores with the
server, and what the load takes of them is told; it would come from elsewhere, so that it is nicer (by 5) than server
and probes, and less so than the engine.

Starts `penstock serve MODEL --max-num-seqs … --max-ttft …`: what runs at a time bounds the time of each token, and what
is admitted the time to the first. --admitted-ttft says how much of --ttft is promised.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

import reporting
import uvloop
from http_client import Timing, complete_over
from serving import HOST, Server, serving

from penstock.bench.load.address import Address
from penstock.bench.load.client import Client

CONCURRENCIES = (4, 8, 16, 32, 64)
# The server has recovered when everything that was due from then on was served within the service levels.
USUAL_SHARE = 0.5
LOAD_NICENESS = 5


@dataclass
class Try:
    """One try of one request; `last` where no other followed."""

    timing: Timing
    request: int
    last: bool


def body(arguments: argparse.Namespace, generator: random.Random) -> dict[str, object]:
    """A request with a random prompt."""
    return {
        "prompt": generator.choices(range(10, arguments.vocabulary), k=arguments.input_len),
        "max_tokens": arguments.output_len,
        "temperature": 0,
        "ignore_eos": True,
    }


def good(timing: Timing, arguments: argparse.Namespace) -> bool:
    """Whether a request was served within the service levels."""
    served = timing.error is None and timing.output_tokens == arguments.output_len
    return served and timing.ttft <= arguments.ttft and (timing.tpot or 0.0) <= arguments.tpot


def goodput(timings: Iterable[Timing], begin: float, end: float, arguments: argparse.Namespace) -> float:
    """Good requests a second, each by the part of its time that is between `begin` and `end`.

    Streams that begin together end together for a while: those that end soon after `begin` were not served in it.
    """
    served = (
        max(0.0, min(timing.ended, end) - max(timing.sent, begin)) / (timing.ended - timing.sent)
        for timing in timings
        if good(timing, arguments)
    )
    return sum(served) / max(end - begin, 1.0)


async def closed_loop(port: int, concurrency: int, arguments: argparse.Namespace) -> float:
    """The goodput with so many streams at a time, from when the first was served."""
    # Prompts that nobody sent before: the second peak must find none of the first in the cache.
    generator = random.Random(time.monotonic_ns())
    end = time.monotonic() + arguments.peak_seconds
    timings: list[Timing] = []

    # Streams go on until those that count have ended, who would otherwise be ever faster.
    counting = 0

    async def stream() -> None:
        nonlocal counting
        while (counts := time.monotonic() < end) or counting:
            counting += counts
            timings.append(await complete_over(client, body(arguments, generator), time.monotonic()))
            counting -= counts

    with closing(Client(Address(HOST, port), arguments.key)) as client:
        await asyncio.gather(*(stream() for _ in range(concurrency)))
    first = min((timing.ended for timing in timings if timing.error is None), default=end)
    return goodput(timings, first, end, arguments)


async def one(client: Client, request: int, due: float, arguments: argparse.Namespace, tries: list[Try]) -> None:
    """A client, and its tries."""
    asked = body(arguments, random.Random(request))
    for attempt in range(arguments.retries + 1):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        timing = await complete_over(client, asked, due)
        last = timing.status not in (429, 503) or attempt == arguments.retries
        tries.append(Try(timing, request, last))
        if last:
            return
        due = timing.ended + (timing.retry_after or 1)


async def open_loop(
    port: int, rates: list[tuple[float, float]], arguments: argparse.Namespace
) -> tuple[float, list[Try]]:
    """All tries, and when they began, of requests that come at each rate for so many seconds."""
    generator, tries, clients = random.Random(0), [], []
    start = due = time.monotonic()
    end = start
    with closing(Client(Address(HOST, port), arguments.key)) as client:
        for rate, seconds in rates:
            end += seconds
            while (due := due + generator.expovariate(rate)) < end:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                clients.append(asyncio.ensure_future(one(client, len(clients), due, arguments, tries)))
            due = end
        await asyncio.gather(*clients)
    return start, tries


async def refusal_time(port: int, key: str | None, asked: dict[str, object]) -> float | None:
    """Milliseconds until a request was refused; None where it is served, which is not waited for any longer."""
    content = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    if key:
        head += f"Authorization: Bearer {key}\r\n"
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(HOST, port)
    with closing(writer):
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        if b" 503 " not in await reader.readline():
            return None
        await reader.read()
        return 1000 * (time.monotonic() - began)


async def refusal_times(port: int, end: float, arguments: argparse.Namespace) -> list[float]:
    """How long refusals took, until `end`."""
    generator, probes = random.Random(-1), []
    while time.monotonic() < end:
        probes.append(
            asyncio.ensure_future(refusal_time(port, arguments.key, {**body(arguments, generator), "stream": True}))
        )
        await asyncio.sleep(generator.expovariate(arguments.probes))
    return [milliseconds for milliseconds in await asyncio.gather(*probes) if milliseconds is not None]


@dataclass(frozen=True)
class Prober:
    """A process that times refusals for clients that do nothing else; it is told when the overload ends."""

    end: "multiprocessing.Queue[float]"
    found: "multiprocessing.Queue[list[float]]"

    def run(self, port: int, arguments: argparse.Namespace) -> None:
        """What it does."""
        self.found.put(uvloop.run(refusal_times(port, self.end.get(), arguments)))


def recovery(tries: list[Try], drop: float, arguments: argparse.Namespace) -> float | None:
    """Seconds after the load has dropped from which on every request was good; None where that never was so."""
    later = sorted(
        (item.timing for item in tries if item.timing.scheduled >= drop), key=lambda timing: timing.scheduled
    )
    bad = [timing.scheduled for timing in later if not good(timing, arguments)]
    if not bad:
        return 0.0
    last = max(bad)
    return last - drop if any(timing.scheduled > last for timing in later) else None


def report(server: Server, peaks: dict[int, float], prober: Prober, arguments: argparse.Namespace) -> None:
    """Run the overload and print what came of it."""
    streams = max(peaks, key=peaks.__getitem__)
    peak = uvloop.run(closed_loop(server.port, streams, arguments))
    if not peak:
        raise SystemExit("No request was served within the service levels; raise --ttft or --tpot.")
    rates = [(arguments.factor * peak, arguments.seconds), (USUAL_SHARE * peak, arguments.recovery)]
    prober.end.put(time.monotonic() + arguments.seconds)
    computed = time.process_time()
    start, tries = uvloop.run(open_loop(server.port, rates, arguments))
    computed = time.process_time() - computed
    probed = prober.found.get(timeout=60)
    later = uvloop.run(closed_loop(server.port, streams, arguments))
    usual = (peak + later) / 2
    drop = start + arguments.seconds
    took = arguments.seconds + arguments.recovery
    # A second to get full, which is no part of what lasts.
    lasting = [item for item in tries if start + 1.0 <= item.timing.scheduled < drop]
    during = goodput((item.timing for item in tries), start + 1.0, drop, arguments)
    refusals = [1000 * (item.timing.ended - item.timing.sent) for item in tries if item.timing.status == 503]
    outcomes = Counter(
        "good" if good(item.timing, arguments) else "served, late" if item.timing.error is None else
        f"refused ({item.timing.status})" if item.timing.status else "no answer"
        for item in tries
        if item.last
    )  # fmt: skip
    first_tokens = [item.timing.ttft for item in lasting if item.timing.error is None]
    rows: list[tuple[object, ...]] = [
        (f"peak goodput, at {streams} streams, requests/s", peak),
        ("the same, afterwards", later),
        (f"goodput at {arguments.factor:g} times the first, requests/s", during),
        ("of the mean of the two", during / usual),
        ("processor time of the load itself, of all cores'", computed / took / reporting.cores()),
        ("TTFT of what was served, median, s", reporting.median(first_tokens)),
        ("TTFT of what was served, p99, s", reporting.percentile(first_tokens, 0.99)),
        ("refusals", len(refusals)),
        ("refusal, median, ms", reporting.median(refusals)),
        ("refusal, p99, ms", reporting.percentile(refusals, 0.99)),
        ("refusals of a client that does nothing else", len(probed)),
        ("the same, median, ms", reporting.median(probed)),
        ("the same, p99, ms", reporting.percentile(probed, 0.99)),
        (f"recovered after the load fell to {USUAL_SHARE:g} of the peak, s", recovery(tries, drop, arguments)),
        ("tries for each request", len(tries) / max(1, sum(item.last for item in tries))),
    ]
    reporting.report(
        f"{arguments.model}: {arguments.factor:g} times the peak for {arguments.seconds:g} s, {arguments.input_len} "
        f"tokens in, {arguments.output_len} out, TTFT ≤ {arguments.ttft:g} s, TPOT ≤ {1000 * arguments.tpot:g} ms",
        ("", "value"),
        rows,
        f"Requests by end: {dict(outcomes)}. Goodput by streams at a time: "
        f"{ {count: round(value, 1) for count, value in peaks.items()} }.",
    )


def main() -> None:
    # All tries are kept to the end, and to look through them for garbage again and again would slow the load down.
    gc.disable()
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="what to serve (default haiku)")
    parser.add_argument("--factor", type=float, default=5.0, help="load, in times of the peak (default 5)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of overload (default 30)")
    parser.add_argument("--recovery", type=float, default=15.0, help="seconds that are watched after it (default 15)")
    parser.add_argument("--peak-seconds", type=float, default=8.0, help="for each number of streams (default 8)")
    parser.add_argument("--retries", type=int, default=0, help="how often a refused client comes back (default 0)")
    parser.add_argument("--probes", type=float, default=20.0, help="a second, of refusals' time (default 20)")
    parser.add_argument("--ttft", type=float, default=2.0, help="service level: seconds to a first token (default 2)")
    parser.add_argument("--tpot", type=float, default=0.1, help="service level: seconds a token (default 0.1)")
    parser.add_argument("--admitted-ttft", type=float, default=0.5, help="share of --ttft as --max-ttft (default 0.5)")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens (default 128)")
    parser.add_argument("--output-len", type=int, default=64, help="output tokens (default 64)")
    parser.add_argument("--vocabulary", type=int, default=2000, help="prompt ids are below it (default 2000)")
    parser.add_argument("--max-num-seqs", type=int, default=32, help="sequences that run at a time (default 32)")
    parser.add_argument("--option", action="append", default=[], help="option for `penstock serve`, may be repeated")
    parser.set_defaults(key=None)
    arguments = parser.parse_args()

    promise = str(arguments.admitted_ttft * arguments.ttft)
    bounds = ["--max-num-seqs", str(arguments.max_num_seqs), "--max-ttft", promise]
    with serving(arguments.model, [*bounds, "--log-level", "warning", *arguments.option]) as server:
        server.wait_until_ready()
        # Before this process makes itself nicer.
        prober = Prober(multiprocessing.Queue(), multiprocessing.Queue())
        multiprocessing.Process(target=prober.run, args=(server.port, arguments), daemon=True).start()
        os.nice(LOAD_NICENESS)
        # What only first requests wait for.
        uvloop.run(closed_loop(server.port, CONCURRENCIES[0], arguments))
        peaks = {count: uvloop.run(closed_loop(server.port, count, arguments)) for count in CONCURRENCIES}
        report(server, peaks, prober, arguments)


if __name__ == "__main__":
    main()
