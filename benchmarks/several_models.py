"""What an embedder beside a chat model costs its streams: inter-token latency with and without embeddings.

Starts `penstock serve MODEL --with EMBEDDER`. Streams of random prompts follow each other, `--streams` at a time.
Windows without and with embeddings take turns, so that whatever else the machine does falls on both. Embeddings
of random texts arrive at random (Poisson) at a fixed rate, whether earlier ones are answered or not. Inter-token
latencies are all gaps between later chunks that begin within a window; figures are over all windows of a kind.

The client runs on the same machine, and takes its part of the processor in both kinds of windows.
"""

import argparse
import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import reporting
from http_client import complete_over
from serving import HOST, Server, serving

from penstock.bench.load.address import Address
from penstock.bench.load.client import Client

CHAT, EMBEDDER = "chat", "embedder"


@dataclass
class Figures:
    """What was measured in the windows of one kind, in seconds; `in_time`: embeddings answered within their window."""

    gaps: list[float] = field(default_factory=list)
    embeddings: list[float] = field(default_factory=list)
    in_time: int = 0


async def stream(server: Server, arguments: argparse.Namespace, generator: random.Random, end: float) -> list[float]:
    """Gaps that begin before `end`, of streams that follow each other."""
    client, gaps = Client(Address(HOST, server.port)), list[float]()
    try:
        while time.monotonic() < end:
            body = {
                "model": CHAT,
                "prompt": generator.choices(range(10, arguments.vocabulary), k=arguments.input_len),
                "max_tokens": arguments.output_len,
                "ignore_eos": True,
                "temperature": 0,
            }
            timing = await complete_over(client, body, time.monotonic())
            if timing.error:
                raise SystemExit(f"A stream failed: {timing.error}")
            chunks = timing.chunks
            gaps += [after - before for before, after in zip(chunks, chunks[1:], strict=False) if before < end]
    finally:
        client.close()
    return gaps


async def embed(
    server: Server, arguments: argparse.Namespace, generator: random.Random, end: float, figures: Figures
) -> None:
    """Embeddings that are due before `end`, and how long they took from then."""
    client = Client(Address(HOST, server.port))

    async def one(due: float, body: dict[str, Any]) -> None:
        exchange = await client.fetch("POST", "/v1/embeddings", msgspec.json.encode(body), lambda _data, _now: False)
        if exchange.status != 200:
            raise SystemExit(f"An embedding failed: HTTP {exchange.status}: {exchange.body.decode(errors='replace')}")
        figures.embeddings.append(exchange.ended - due)
        figures.in_time += exchange.ended <= end

    due, tasks = time.monotonic(), list[asyncio.Task[None]]()
    try:
        while (due := due + generator.expovariate(arguments.rate)) < end:
            text = generator.choices(range(1000, arguments.embedder_vocabulary), k=arguments.text_len)
            body = {"model": EMBEDDER, "input": text, "encoding_format": "base64"}
            await asyncio.sleep(due - time.monotonic())
            tasks.append(asyncio.create_task(one(due, body)))
        await asyncio.gather(*tasks)
    finally:
        client.close()


async def window(server: Server, arguments: argparse.Namespace, number: int, figures: Figures, *, beside: bool) -> None:
    """One window of either kind."""
    end = time.monotonic() + arguments.seconds
    embeddings = embed(server, arguments, random.Random(-number), end, figures) if beside else asyncio.sleep(0)
    generators = [random.Random(1000 * number + each) for each in range(arguments.streams)]
    streams = (stream(server, arguments, generator, end) for generator in generators)
    _, *gaps = await asyncio.gather(embeddings, *streams)
    figures.gaps += [gap for each in gaps for gap in each]


async def measure(server: Server, arguments: argparse.Namespace) -> tuple[Figures, Figures]:
    """Figures of windows without and with embeddings."""
    without, beside = Figures(), Figures()
    await window(server, arguments, 0, Figures(), beside=True)
    for number in range(1, arguments.rounds + 1):
        kinds = (without, beside) if number % 2 else (beside, without)
        for figures in kinds:
            await window(server, arguments, number, figures, beside=figures is beside)
    return without, beside


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", nargs="?", default="haiku", help="what chats (default: the bundled model)")
    parser.add_argument("--embedder", required=True, metavar="'MODEL [OPTIONS]'", help="what makes vectors")
    parser.add_argument("--rate", type=float, default=50.0, help="embeddings a second (default 50)")
    parser.add_argument("--text-len", type=int, default=128, help="tokens of a text (default 128)")
    parser.add_argument("--streams", type=int, default=1, help="streams at a time (default 1)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window (default 20)")
    parser.add_argument("--rounds", type=int, default=4, help="windows of each kind (default 4)")
    parser.add_argument("--input-len", type=int, default=32, help="prompt tokens of a stream (default 32)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens of a stream (default 128)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="the chat model's ids are below it (default 4000)")
    parser.add_argument("--embedder-vocabulary", type=int, default=20000, help="and the embedder's (default 20000)")
    parser.add_argument("--option", action="append", default=[], help="option for `penstock serve`, may be repeated")
    arguments = parser.parse_args()

    options = ["--data-dir", "off", "--log-level", "warning", "--served-model-name", CHAT]
    options += ["--with", f"{arguments.embedder} --served-model-name {EMBEDDER}", *arguments.option]
    with serving(arguments.model, options) as server:
        server.wait_until_ready()
        without, beside = asyncio.run(measure(server, arguments))
    rows: list[tuple[object, ...]] = []
    for what, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
        before, after = reporting.percentile(without.gaps, share), reporting.percentile(beside.gaps, share)
        if before is None or after is None:
            raise SystemExit("Nothing was measured; take longer windows.")
        embedding = reporting.percentile(beside.embeddings, share)
        rows.append((what, 1000 * before, 1000 * after, f"{after / before:.2f}×", embedding and 1000 * embedding))
    reporting.report(
        f"{arguments.model}: {arguments.streams} streams, beside {arguments.rate:g} embeddings/s of "
        f"{arguments.text_len} tokens",
        ("", "ITL without, ms", "ITL with, ms", "ratio", "embedding, ms"),
        rows,
        f"{len(without.gaps)} gaps without and {len(beside.gaps)} with embeddings, and "
        f"{beside.in_time / (arguments.rounds * arguments.seconds):.1f} embeddings/s answered within their windows.",
    )


if __name__ == "__main__":
    main()
