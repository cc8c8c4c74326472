"""Concurrent streams over HTTP, with the client on the same machine: what is left of the engine's speed.

Random prompts of a fixed length, streamed, a fixed number at a time, as `vllm bench serve --max-concurrency` does. Time
to first token counts from when a request was due, time per output token is (end to end - TTFT) / (tokens - 1), one for
each request, and inter-token latencies are all gaps between later chunks.

Starts `penstock serve MODEL`, or measures the server that listens on --port.
"""

import argparse
import asyncio
import random
import time
from pathlib import Path

import reporting
from http_client import Timing, run_load
from serving import serving


def make_bodies(count: int, arguments: argparse.Namespace, seed: int) -> list[dict[str, object]]:
    """Requests with random prompts."""
    generator = random.Random(seed)
    return [
        {
            "prompt": generator.choices(range(10, arguments.vocabulary), k=arguments.input_len),
            "max_tokens": arguments.output_len,
            "temperature": 0,
            "ignore_eos": True,
        }
        for _ in range(count)
    ]


def measure(port: int, arguments: argparse.Namespace) -> tuple[list[Timing], float]:
    """Warm up, then run the load."""
    warm_up = make_bodies(arguments.concurrency, arguments, seed=1)
    asyncio.run(run_load(port, warm_up, arguments.concurrency))
    time.sleep(0.5)
    return asyncio.run(run_load(port, make_bodies(arguments.requests, arguments, seed=0), arguments.concurrency))


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="what to serve; with --port only a name for the table")
    parser.add_argument("--port", type=int, help="measure the server that listens there instead of starting one")
    parser.add_argument("--requests", type=int, default=200, help="requests in all (default 200)")
    parser.add_argument("--concurrency", type=int, default=32, help="streams at a time (default 32)")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens (default 128)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (default 128)")
    parser.add_argument("--vocabulary", type=int, default=30000, help="prompt ids are below it (default 30000)")
    parser.add_argument("--option", action="append", default=[], help="option for `penstock serve`, may be repeated")
    arguments = parser.parse_args()

    if arguments.port is not None:
        timings, seconds = measure(arguments.port, arguments)
    else:
        with serving(arguments.model, arguments.option) as server:
            server.wait_until_ready()
            timings, seconds = measure(server.port, arguments)
    output = sum(timing.output_tokens for timing in timings)
    latencies = {
        "TTFT, ms": [timing.ttft for timing in timings],
        "TPOT, ms": [timing.tpot for timing in timings if timing.tpot is not None],
        "ITL, ms": [gap for timing in timings for gap in timing.gaps],
        "end to end, ms": [timing.e2e for timing in timings],
    }
    rows: list[tuple[object, ...]] = [
        (name, *(None if value is None else 1000 * value for value in _summary(values)))
        for name, values in latencies.items()
    ]
    reporting.report(
        f"{Path(arguments.model).name}: {arguments.requests} requests, {arguments.concurrency} at a time, "
        f"{arguments.input_len} tokens in, {arguments.output_len} out",
        ("latency", "mean", "median", "p99"),
        rows,
        f"Output: {output / seconds:,.0f} tokens/s ({output:,} tokens in {seconds:.2f} s, "
        f"{len(timings) / seconds:.2f} requests/s).",
    )


def _summary(values: list[float]) -> tuple[float | None, float | None, float | None]:
    mean = sum(values) / len(values) if values else None
    return mean, reporting.median(values), reporting.percentile(values, 0.99)


if __name__ == "__main__":
    main()
