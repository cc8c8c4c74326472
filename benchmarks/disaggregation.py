"""What streams notice of long prompts, with replicas that compute prompts apart from those that decode.

    python benchmarks/disaggregation.py MODEL --quantization int4 [--rounds 3]

Two servers of one thread each are behind a gateway. In turn they have roles (`--role prefill`, `--role decode`), or
each does both. Some streams run (8 by default), and long prompts (4,096 tokens) arrive one after the other, each of
which wants a few tokens. Of the streams' gaps those count that end between the first prompt's sending and the last
one's first token. Told are these gaps, the prompts' times to first token, the tokens of all streams a second in that
time, and how many prompts were handed over. Equal rounds alternate. Client and gateway run on the same machine.
"""

import argparse
import asyncio
import contextlib
import random
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import reporting
from http_client import Timing, body, complete
from serving import Server, running, serving

SHARES = (0.5, 0.95, 0.99, 1.0)
KINDS = {"apart": ("prefill", "decode"), "each does both": ("both", "both")}


@dataclass
class Figures:
    """Seconds: gaps of streams while prompts are computed; times to first token; tokens a second; prompts."""

    gaps: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    handed: int = 0


@contextlib.contextmanager
def fleet(arguments: argparse.Namespace, roles: tuple[str, str]) -> Iterator[Server]:
    """A gateway, with two servers of these roles behind it, which are ready."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "secret").write_text(secrets.token_hex(32))
        (folder / "gateway.toml").write_text(f'[handover]\nwhen = "{arguments.when}"\n')
        common = ("--quantization", arguments.quantization, "--speculative", "off", "--threads", str(arguments.threads))
        servers = []
        for number, role in enumerate(roles):
            own = ("--role", role, "--prefix-secret-file", str(folder / "secret"))
            data = ("--data-dir", str(folder / f"data{number}"))
            servers.append(stack.enter_context(serving(arguments.model, (*common, *own, *data))))
        for server in servers:
            server.wait_until_ready()
        urls = [part for each in servers for part in ("--replica", f"http://127.0.0.1:{each.port}")]
        passing = stack.enter_context(running("gateway", *urls, "--config", str(folder / "gateway.toml")))
        passing.wait_until_ready()
        yield passing


async def one_round(port: int, arguments: argparse.Namespace, seed: int, figures: Figures) -> None:
    """Run the streams with long prompts beside them."""
    generator = random.Random(seed)

    def send(tokens: int, most: int) -> "asyncio.Task[Timing]":
        request = body(generator, tokens, most, arguments.vocabulary)
        return asyncio.create_task(complete(port, request, time.monotonic()))

    # What is computed once, and learnt of speeds, is no part of it.
    await asyncio.gather(*(send(arguments.prompt_len, 4) for _ in range(2)))
    streams = [send(arguments.input_len, arguments.output_len) for _ in range(arguments.streams)]
    await asyncio.sleep(arguments.after)
    prompts = []
    for _ in range(arguments.prompts):
        prompts.append(send(arguments.prompt_len, arguments.prompt_output_len))
        await asyncio.sleep(arguments.every)
    long, timings = await asyncio.gather(asyncio.gather(*prompts), asyncio.gather(*streams))
    failures = [timing.error for timing in (*long, *timings) if timing.error]
    if failures:
        raise SystemExit(f"{len(failures)} requests failed, the first with: {failures[0]}")
    begun, ended = long[0].sent, max(each.chunks[0] for each in long)
    if max(timing.chunks[0] for timing in timings) > begun:
        raise SystemExit("The streams had not begun when the first prompt was sent; give --after more seconds.")
    if min(timing.chunks[-1] for timing in timings) < ended:
        raise SystemExit("The streams ended before all prompts were computed; give them a larger --output-len.")
    figures.ttft += [each.ttft for each in long]
    ends = [end for timing in timings for end in timing.chunks if begun <= end <= ended]
    figures.rates.append(len(ends) / (ended - begun))
    for timing in timings:
        pairs = zip(timing.chunks[1:], timing.gaps, strict=True)
        figures.gaps += [gap for end, gap in pairs if begun <= end <= ended]


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--quantization", default="none", help="of the weights (default none)")
    parser.add_argument("--when", default="pays", choices=("pays", "always"), help="of the gateway (default pays)")
    parser.add_argument("--threads", type=int, default=1, help="of each server (default 1)")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind (default 3)")
    parser.add_argument("--streams", type=int, default=8, help="that decode (default 8)")
    parser.add_argument("--prompts", type=int, default=4, help="long ones, one after the other (default 4)")
    parser.add_argument("--every", type=float, default=4.0, help="seconds from one to the next (default 4)")
    parser.add_argument("--prompt-len", type=int, default=4096, help="tokens of a long prompt (default 4096)")
    parser.add_argument("--prompt-output-len", type=int, default=8, help="output tokens of one (default 8)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens of a stream (default 64)")
    parser.add_argument("--output-len", type=int, default=600, help="output tokens of a stream (default 600)")
    parser.add_argument("--after", type=float, default=6.0, help="seconds until the first prompt arrives (default 6)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="prompt ids are below it (default 4000)")
    arguments = parser.parse_args()

    found = {name: Figures() for name in KINDS}
    for number in range(arguments.rounds):
        for name, roles in list(KINDS.items())[:: -1 if number % 2 else 1]:
            with fleet(arguments, roles) as passing:
                asyncio.run(one_round(passing.port, arguments, number, found[name]))
                found[name].handed += round(passing.metric("penstock_gateway_handed_over_total"))
    rows: list[tuple[object, ...]] = []
    for name, figures in found.items():
        gaps = (reporting.percentile(figures.gaps, share) for share in SHARES)
        ttft = reporting.median(figures.ttft), reporting.percentile(figures.ttft, 0.99)
        rows.append((name, len(figures.gaps), *gaps, *ttft, reporting.median(figures.rates), figures.handed))
    reporting.report(
        f"{arguments.model}, {arguments.quantization}: seconds between tokens of {arguments.streams} streams beside "
        f"{arguments.prompts} prompts of {arguments.prompt_len:,} tokens, one every {arguments.every:g} s",
        (
            *("two servers", "gaps", "p50", "p95", "p99", "largest", "prompts' TTFT p50", "p99"),
            *("streams' tokens/s", "prompts handed over"),
        ),
        rows,
    )
    apart, both = (reporting.percentile(figures.gaps, 0.99) or 0.0 for figures in found.values())
    print(
        f"\nThe 99th percentile of gaps apart is {apart / both if both else 0.0:.2f} times that where each does both."
    )


if __name__ == "__main__":
    main()
