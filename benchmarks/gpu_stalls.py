"""What capturing graphs of decode steps costs those whose tokens come meanwhile.

An engine in a process of its own, as a server has it, and rounds of streams from the moment it is ready, for as long as
graphs are captured and longer: while the streams run, after every 64 steps, and in the pauses between rounds. The
longest time between two tokens of a stream is told for each round; 100 ms is wanted at the most.

    python benchmarks/gpu_stalls.py 8b --streams 8
"""

import argparse
import asyncio
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import reporting
from gpu_shapes import SHAPES, write_config

from penstock import AsyncEngine, SamplingParams

WANTED = 0.1


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("shape", choices=SHAPES, help="of the model, whose weights are random")
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--streams", type=int, default=8, help="at a time (default 8)")
    parser.add_argument("--tokens", type=int, default=200, help="of each (default 200)")
    parser.add_argument("--rounds", type=int, default=12, help="of all streams (default 12)")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between rounds (default 0.5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = asyncio.run(measure(str(write_config(Path(folder), arguments.shape)), arguments))
    cells = [[number, f"{begun:.1f}", f"{longest * 1e3:.1f}"] for number, (begun, longest) in enumerate(rounds, 1)]
    print(reporting.table(["round", "begun, seconds after it was ready", "longest between two tokens, ms"], cells))
    worst = max(longest for _, longest in rounds)
    print(f"\nAt the most {worst * 1e3:.1f} ms; {WANTED * 1e3:.0f} are wanted.")
    sys.exit(worst > WANTED)


async def measure(model: str, arguments: argparse.Namespace) -> list[tuple[float, float]]:
    """When each round began, and the longest time between two tokens in it."""
    options = {"device": arguments.device, "load_format": "dummy", "speculative": "off"}
    async with await AsyncEngine.start(model, **options, max_model_len=arguments.tokens + 16) as engine:
        ready, found = time.monotonic(), []
        for number in range(arguments.rounds):
            begun = time.monotonic()
            streams = (
                stream(engine, [10 + number, 20 + each, 30], arguments.tokens) for each in range(arguments.streams)
            )
            times = await asyncio.gather(*streams)
            found.append((begun - ready, max(after - before for each in times for before, after in pairwise(each))))
            await asyncio.sleep(arguments.pause)
    return found


async def stream(engine: AsyncEngine, prompt: list[int], tokens: int) -> list[float]:
    """When each output came."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return [time.monotonic() async for _ in engine.generate({"prompt_token_ids": prompt}, params)]


if __name__ == "__main__":
    main()
