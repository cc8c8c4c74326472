"""What does it cost that several processes compute a model, instead of as many threads of one?

    python benchmarks/ranks.py MODEL [--ranks 2] [--by tensor] [--quantization int4 none] [--batch 1 8] [--rounds 7]

MODEL is a directory with config.json; weights are random. For each kind of weights, one engine is a process with
`--ranks` threads, another one is `--ranks` processes with a thread each, which have parts of each layer
(`--by tensor`), stages of layers (`--by pipeline`) or parts of contexts (`--by context`). Both stay, and take turns:
each round, each computes prompts, then tokens behind them. Speeds are medians of rounds; a ratio is the median of the
rounds' own.
"""

import multiprocessing
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import reporting

from penstock import LLM, SamplingParams

PROMPT, OUTPUT = 512, 64


class Speed(NamedTuple):
    """Tokens per second."""

    prefill: float
    decode: float


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--by", choices=("tensor", "pipeline", "context"), default="tensor")
    parser.add_argument("--quantization", nargs="*", default=["int4", "none"])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    rows = []
    for quantization in arguments.quantization:
        layouts = [
            {"threads": arguments.ranks},
            {"threads": arguments.ranks, f"{arguments.by}_parallel_size": arguments.ranks},
        ]
        with Engines(arguments.model, quantization, layouts) as engines:
            for batch in arguments.batch:
                found = [engines.round(batch, number) for number in range(arguments.rounds)]
                rows.append([quantization, batch, *compared(found)])
    header = ["weights", "prompts", "prefill, threads", "ranks", "ratio", "decode, threads", "ranks", "ratio"]
    reporting.report(f"{arguments.ranks} ranks beside {arguments.ranks} threads, tokens per second", header, rows)


def compared(rounds: Sequence[tuple[Speed, Speed]]) -> list[object]:
    """Medians of both, and of their ratios, for each part."""
    cells: list[object] = []
    for field in Speed._fields:
        pairs = [(getattr(threads, field), getattr(ranks, field)) for threads, ranks in rounds]
        cells += [statistics.median(each) for each in zip(*pairs, strict=True)]
        cells.append(statistics.median(ranks / threads for threads, ranks in pairs))
    return cells


class Engines:
    """An engine for each layout, in a process of its own."""

    def __init__(self, model: str, quantization: str, layouts: Sequence[dict[str, int]]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pools = [ProcessPoolExecutor(1, spawn, load, (model, quantization, layout)) for layout in layouts]
        # All are there before any is measured.
        for pool in self._pools:
            pool.submit(measured, 1, -1).result()

    def __enter__(self) -> "Engines":
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    def round(self, batch: int, number: int) -> tuple[Speed, Speed]:
        """What each reaches, one after the other; which is first changes from round to round."""
        places = (0, 1) if number % 2 else (1, 0)
        found = {place: self._pools[place].submit(measured, batch, number).result() for place in places}
        return found[0], found[1]


# That of a process.
ENGINE: list[LLM] = []


def load(model: str, quantization: str, layout: dict[str, int]) -> None:
    """Make this process's engine."""
    settings = {"load_format": "dummy", "dtype": "bfloat16", "speculative": "off", "enable_prefix_caching": False}
    ENGINE.append(LLM(model, quantization=quantization, **settings, **layout))


def measured(batch: int, seed: int) -> Speed:
    """What this process's engine reaches: prompts alone, then the same with tokens behind them."""
    (llm,), luck = ENGINE, random.Random(seed)
    prompts = [[luck.randrange(3, llm.vocab_size) for _ in range(PROMPT)] for _ in range(batch)]
    seconds = []
    for tokens in (1, 1 + OUTPUT):
        started = time.perf_counter()
        llm.generate(prompts, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
        seconds.append(time.perf_counter() - started)
    return Speed(batch * PROMPT / seconds[0], batch * OUTPUT / (seconds[1] - seconds[0]))


if __name__ == "__main__":
    main()
