"""What everything that a server tells of itself costs: its throughput with that, and without.

    python benchmarks/observability_cost.py MODEL [--concurrency 32] [--rounds 5]

Facts of steps, metrics, `/v1/stats`, accounts of requests and the log are taken out of both processes of the second
server (`without_observability/sitecustomize.py`), which is otherwise the same. Requests come in a closed loop; rounds
of the two take turns on servers that stay up. Ends with 1 where the median of the rounds' ratios is below 0.97.
"""

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

import reporting
from http_client import run_load
from serving import Server, serving

LEAST = 0.97
WITHOUT = Path(__file__).parent / "without_observability"


def tokens_per_second(server: Server, bodies: list[dict[str, Any]], concurrency: int) -> float:
    """Output tokens per second of one round."""
    timings, seconds = asyncio.run(run_load(server.port, bodies, concurrency))
    return sum(timing.output_tokens for timing in timings) / seconds


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time (default 32)")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--requests", type=int, default=192, help="of a round (default 192)")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens (default 128)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (default 128)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="prompt ids are below it (default 4000)")
    arguments = parser.parse_args()

    def bodies(seed: int) -> list[dict[str, Any]]:
        generator = random.Random(seed)
        prompts = (
            generator.choices(range(10, arguments.vocabulary), k=arguments.input_len) for _ in range(arguments.requests)
        )
        most = {"max_tokens": arguments.output_len, "temperature": 0, "ignore_eos": True}
        return [{"prompt": prompt, **most} for prompt in prompts]

    path = os.environ.get("PYTHONPATH", "")
    # As many steps as there are tokens, whatever a model of random weights repeats.
    options = ("--speculative", "off")
    with serving(arguments.model, options) as usual:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(WITHOUT), path)))
        with serving(arguments.model, options) as silent:
            for server in (usual, silent):
                server.wait_until_ready()
                tokens_per_second(server, bodies(0)[: arguments.concurrency], arguments.concurrency)
            if "penstock_engine_steps_total 0" in usual.get("/metrics")[1]:
                raise SystemExit("The usual server counts nothing.")
            if silent.metric("penstock_generation_tokens_total"):
                raise SystemExit("The other server counts tokens: nothing was taken out of it.")
            rates: dict[str, list[float]] = {"usual": [], "silent": []}
            for number in range(1, arguments.rounds + 1):
                kinds = [("usual", usual), ("silent", silent)]
                for name, server in kinds[:: -1 if number % 2 else 1]:
                    load = bodies(2 * number + (name == "usual"))
                    rates[name].append(tokens_per_second(server, load, arguments.concurrency))
    ratios = [ours / theirs for ours, theirs in zip(rates["usual"], rates["silent"], strict=True)]
    reached = reporting.median(ratios) or 0.0
    reporting.report(
        f"{arguments.model}: output tokens per second of {arguments.concurrency} streams",
        ("as it is", "telling nothing", "ratio of a round, least", "median", "most"),
        [(reporting.median(rates["usual"]), reporting.median(rates["silent"]), min(ratios), reached, max(ratios))],
        f"{arguments.rounds} rounds of {arguments.requests} requests each, {arguments.input_len} tokens in and "
        f"{arguments.output_len} out.",
    )
    sys.exit(int(reached < LEAST))


if __name__ == "__main__":
    main()
