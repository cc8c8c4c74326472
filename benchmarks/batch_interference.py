"""What a batch costs those who wait: latencies of interactive streams with and without 1,000 batch lines running.

Streamed completions of random prompts arrive at random (Poisson) at a fixed rate, for some seconds a round; rounds
without and with a batch take turns, so that whatever else the machine does falls on both. Time to first token counts
from when a request was due, inter-token latencies are all gaps between later chunks; figures are over all rounds of a
kind.

Starts `penstock serve MODEL`; the client runs on the same machine. The last line says how fast a
batch runs meanwhile, and how fast by itself.
"""

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import reporting
from http_client import Timing, complete
from serving import HOST, Server, serving

MOST_LINES_BY_ITSELF = 200


@dataclass
class Figures:
    """What was measured of one kind of round."""

    timings: list[Timing] = field(default_factory=list)
    seconds: float = 0.0
    lines: float = 0.0

    def latencies(self) -> dict[str, list[float]]:
        """Seconds by name."""
        return {
            "TTFT": [timing.ttft for timing in self.timings],
            "ITL": [gap for timing in self.timings for gap in timing.gaps],
        }


def ask(server: Server, path: str, body: bytes | None = None, kind: str = "application/json") -> dict[str, Any]:
    """The JSON answer to a GET, or to a POST where there is a body."""
    request = urllib.request.Request(f"http://{HOST}:{server.port}{path}", body, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=60) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


def upload(server: Server, count: int, arguments: argparse.Namespace, seed: int) -> str:
    """The id of an input file of `count` lines."""
    generator = random.Random(seed)
    lines = []
    for number in range(count):
        body = {
            "prompt": generator.choices(range(10, arguments.vocabulary), k=arguments.batch_input_len),
            "max_tokens": arguments.batch_output_len,
            "ignore_eos": True,
        }
        lines.append(json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}))
    boundary = uuid.uuid4().hex
    form = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    ) + "\n".join(lines)
    body = f"{form}\r\n--{boundary}--\r\n".encode()
    return str(ask(server, "/v1/files", body, f"multipart/form-data; boundary={boundary}")["id"])


def begin(server: Server, file_id: str) -> str:
    """Begin a batch, and wait until its lines run."""
    fields = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = str(ask(server, "/v1/batches", json.dumps(fields).encode())["id"])
    while ask(server, f"/v1/batches/{batch_id}")["status"] == "validating":
        time.sleep(0.01)
    return batch_id


def end(server: Server, batch_id: str) -> None:
    """Cancel a batch, unless it has ended."""
    with contextlib.suppress(urllib.error.HTTPError):
        ask(server, f"/v1/batches/{batch_id}/cancel", b"")
    while ask(server, f"/v1/batches/{batch_id}")["status"] in ("in_progress", "cancelling", "finalizing"):
        time.sleep(0.01)


def schedule(arguments: argparse.Namespace, number: int, seed: int) -> Iterator[tuple[float, dict[str, Any]]]:
    """When the requests of a round are due, in seconds from its start, and their bodies."""
    arrivals, generator = random.Random(number), random.Random(seed)
    due = 0.0
    while (due := due + arrivals.expovariate(arguments.rate)) < arguments.seconds:
        yield (
            due,
            {
                "prompt": generator.choices(range(10, arguments.vocabulary), k=arguments.input_len),
                "max_tokens": arguments.output_len,
                "temperature": 0,
                "ignore_eos": True,
            },
        )


async def stream(server: Server, arguments: argparse.Namespace, number: int, seed: int) -> list[Timing]:
    """One round of interactive requests."""
    start = time.monotonic() + 0.1

    async def one(due: float, body: dict[str, Any]) -> Timing:
        await asyncio.sleep(start + due - time.monotonic())
        return await complete(server.port, body, start + due)

    timings = await asyncio.gather(*(one(due, body) for due, body in schedule(arguments, number, seed)))
    failures = [timing.error for timing in timings if timing.error]
    if failures:
        raise SystemExit(f"{len(failures)} of {len(timings)} requests failed, the first with: {failures[0]}")
    return list(timings)


def measure(server: Server, arguments: argparse.Namespace) -> tuple[Figures, Figures, float]:
    """Figures without and with a batch, and the lines that a batch by itself does in a second."""
    without, beside = Figures(), Figures()
    asyncio.run(stream(server, arguments, number=-1, seed=0))
    file_id = upload(server, arguments.lines, arguments, seed=0)
    for number in range(arguments.rounds):
        for figures in (without, beside) if number % 2 == 0 else (beside, without):
            batch_id = begin(server, file_id) if figures is beside else None
            time.sleep(0.5)
            lines, start = server.metric("penstock_batch_lines_total"), time.monotonic()
            # The same arrivals for both kinds; prompts differ, so that none is in the cache.
            seed = 1 + 2 * number + (figures is beside)
            figures.timings += asyncio.run(stream(server, arguments, number, seed))
            figures.seconds += time.monotonic() - start
            figures.lines += server.metric("penstock_batch_lines_total") - lines
            if batch_id is not None:
                if ask(server, f"/v1/batches/{batch_id}")["status"] != "in_progress":
                    raise SystemExit("The batch ended before the round; ask for more --lines or fewer --seconds.")
                end(server, batch_id)
    return without, beside, speed_by_itself(server, arguments)


def speed_by_itself(server: Server, arguments: argparse.Namespace) -> float:
    """Lines in a second while nobody else asks for anything."""
    count = min(MOST_LINES_BY_ITSELF, arguments.lines)
    file_id = upload(server, count, arguments, seed=1)
    start, batch_id = time.monotonic(), begin(server, file_id)
    while ask(server, f"/v1/batches/{batch_id}")["status"] != "completed":
        time.sleep(0.05)
    return count / (time.monotonic() - start)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="what to serve (default: the bundled model)")
    parser.add_argument("--rate", type=float, default=2.0, help="interactive requests a second (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a round (default 20)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each kind (default 4)")
    parser.add_argument("--lines", type=int, default=1000, help="lines of a batch (default 1000)")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens of a request (default 128)")
    parser.add_argument("--output-len", type=int, default=64, help="output tokens of a request (default 64)")
    parser.add_argument("--batch-input-len", type=int, default=128, help="prompt tokens of a line (default 128)")
    parser.add_argument("--batch-output-len", type=int, default=128, help="output tokens of a line (default 128)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="prompt ids are below it (default 4000)")
    parser.add_argument("--option", action="append", default=[], help="option for `penstock serve`, may be repeated")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        options = ["--data-dir", folder, "--log-level", "warning", *arguments.option]
        with serving(arguments.model, options) as server:
            server.wait_until_ready()
            without, beside, alone = measure(server, arguments)
    rows: list[tuple[object, ...]] = []
    for name, values in without.latencies().items():
        others = beside.latencies()[name]
        for what, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
            before, after = reporting.percentile(values, share), reporting.percentile(others, share)
            if before is not None and after is not None:
                rows.append((f"{name} {what}, ms", 1000 * before, 1000 * after, f"{after / before:.2f}×"))
    reporting.report(
        f"{arguments.model}: {arguments.rate:g} requests/s of {arguments.input_len} tokens in and "
        f"{arguments.output_len} out, beside a batch of {arguments.lines} lines",
        ("latency", "without", "with a batch", "ratio"),
        rows,
        f"{len(without.timings)} requests without and {len(beside.timings)} with a batch. The batch did "
        f"{beside.lines / beside.seconds:.2f} lines/s meanwhile, and {alone:.2f} lines/s by itself.",
    )


if __name__ == "__main__":
    main()
