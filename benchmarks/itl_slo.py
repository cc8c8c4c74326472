"""What streams notice of a long prompt beside them, where the time between their tokens has a service level.

    python benchmarks/itl_slo.py MODEL --quantization int4 [--slo 0.25] [--rounds 3]

Some streams decode (8 by default); once each has had some tokens, a long prompt arrives (4,096 tokens). Of the streams'
gaps those count that end between the long prompt's sending and its first token. In turn the server has `--slo itl=SLO`,
by which prompts are cut into chunks, and a step for the whole prompt, which is how it would be without chunks. Starts
`penstock serve MODEL` for each; the client runs on the same machine. Ends with 1 where the 95th percentile is beyond
1.2 times the service level.
"""

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, field

import reporting
from http_client import Timing, body, complete
from serving import serving

TOLERANCE = 1.2
SHARES = (0.5, 0.95, 0.99, 1.0)


@dataclass
class Figures:
    """Seconds: gaps of streams while the long prompt is computed, and before; its time to first token."""

    beside: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)


async def one_round(port: int, arguments: argparse.Namespace, seed: int, figures: Figures) -> None:
    """Run the streams with a long prompt beside them."""
    generator = random.Random(seed)

    def send(tokens: int, most: int) -> "asyncio.Task[Timing]":
        request = body(generator, tokens, most, arguments.vocabulary)
        return asyncio.create_task(complete(port, request, time.monotonic()))

    streams = [send(arguments.input_len, arguments.output_len) for _ in range(arguments.streams)]
    await asyncio.sleep(arguments.after)
    prompt = await send(arguments.prompt_len, 4)
    timings = await asyncio.gather(*streams)
    failures = [timing.error for timing in (prompt, *timings) if timing.error]
    if failures:
        raise SystemExit(f"{len(failures)} requests failed, the first with: {failures[0]}")
    begun, ended = prompt.sent, prompt.chunks[0]
    if min(timing.chunks[-1] for timing in timings) < ended:
        raise SystemExit("The streams ended before the prompt was computed; give them a larger --output-len.")
    if max(timing.chunks[0] for timing in timings) > begun:
        raise SystemExit("The streams had not begun when the prompt was sent; give --after more seconds.")
    figures.ttft.append(prompt.ttft)
    for timing in timings:
        for end, gap in zip(timing.chunks[1:], timing.gaps, strict=True):
            if begun <= end <= ended:
                figures.beside.append(gap)
            elif end < begun:
                figures.before.append(gap)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--quantization", default="none", help="of the weights (default none)")
    parser.add_argument("--slo", type=float, default=0.25, help="seconds between tokens (default 0.25)")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind (default 3)")
    parser.add_argument("--streams", type=int, default=8, help="that decode (default 8)")
    parser.add_argument("--prompt-len", type=int, default=4096, help="tokens of the long prompt (default 4096)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens of a stream (default 64)")
    parser.add_argument("--output-len", type=int, default=250, help="output tokens of a stream (default 250)")
    parser.add_argument("--after", type=float, default=6.0, help="seconds until the prompt arrives (default 6)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="prompt ids are below it (default 4000)")
    arguments = parser.parse_args()

    whole = ("--max-num-batched-tokens", str(2 * arguments.prompt_len), "--target-itl", "3600")
    kinds = {f"chunks, --slo itl={arguments.slo:g}s": ("--slo", f"itl={arguments.slo:g}s"), "one step": whole}
    found = {name: Figures() for name in kinds}
    for number in range(arguments.rounds):
        for name, options in list(kinds.items())[:: -1 if number % 2 else 1]:
            # Drafts would be right as for no other: a model of random weights repeats itself.
            always = ("--quantization", arguments.quantization, "--speculative", "off")
            with serving(arguments.model, (*always, *options)) as server:
                server.wait_until_ready()
                asyncio.run(one_round(server.port, arguments, 2 * number, found[name]))
    rows: list[tuple[object, ...]] = []
    for name, figures in found.items():
        gaps = (reporting.percentile(figures.beside, share) for share in SHARES)
        before = reporting.percentile(figures.before, 0.95)
        rows.append((name, len(figures.beside), *gaps, before, reporting.median(figures.ttft)))
    reporting.report(
        f"{arguments.model}, {arguments.quantization}: seconds between tokens of {arguments.streams} streams beside "
        f"a prompt of {arguments.prompt_len:,} tokens",
        ("the prompt comes in", "gaps", "p50", "p95", "p99", "largest", "p95 before", "its own time to first token"),
        rows,
    )
    reached = (reporting.percentile(next(iter(found.values())).beside, 0.95) or 0.0) / arguments.slo
    print(
        f"\nWith chunks the 95th percentile is {reached:.2f} times the service level; at most {TOLERANCE:g} is wanted."
    )
    sys.exit(int(reached > TOLERANCE))


if __name__ == "__main__":
    main()
