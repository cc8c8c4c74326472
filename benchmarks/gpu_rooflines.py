"""How near a GPU comes to what its memory and its arithmetic allow, decoding and with prompts.

Weights are random and made on the GPU. What steps must move is what Penstock counts itself (`core/work.py`): weights
once a step, keys and values as they are read and written. Beside it stand the ceilings that are measured in the same
run, a large copy within the memory and a large product of bfloat16 matrices; the larger of the two bounds is the least
time, and the share what of it is reached. Medians of some runs behind one that warms up, long enough that a graph of
the batch's decode steps is captured.

    python benchmarks/gpu_rooflines.py 8b --batch-sizes 1,8,32,64,128 --prompts 2048,8192
    python benchmarks/gpu_rooflines.py 70b --quantization int8 --batch-sizes 1 --prompts 8192
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import reporting
import torch
from gpu_shapes import SHAPES, write_config

from penstock import LLM, SamplingParams
from penstock.core.ceilings import Ceilings
from penstock.runtime.gpu_ceilings import measure_device_ceilings

# Steps of one size behind which a graph is captured for it (`kernels/cuda/graphs.py`), and some more.
WARM_UP = 80


class Figure(NamedTuple):
    """What was measured of one workload: seconds of a step, or of a prompt, and what it must move and compute."""

    what: str
    tokens: int
    seconds: float
    moved: float
    operations: float

    def bounds(self, ceilings: Ceilings) -> tuple[float, float]:
        """Least seconds by memory, and by arithmetic."""
        return self.moved / ceilings.read / 1e9, self.operations / ceilings.peak("bfloat16") / 1e9


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("shape", choices=SHAPES, help="of the model")
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--quantization", default="none", help="of the weights (default none)")
    parser.add_argument("--kv-cache-dtype", default="auto", help="default auto")
    parser.add_argument("--batch-sizes", default="1,8,32,64,128", help="of decodes (default 1,8,32,64,128)")
    parser.add_argument("--context", type=int, default=512, help="tokens before those that are decoded (default 512)")
    parser.add_argument("--steps", type=int, default=64, help="of decodes that are timed (default 64)")
    parser.add_argument("--prompts", default="2048,8192", help="lengths, one prompt at a time (default 2048,8192)")
    parser.add_argument("--runs", type=int, default=5, help="of each, of which the median counts (default 5)")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help=f"steps of each batch before (default {WARM_UP})")
    parser.add_argument("--deterministic", action="store_true", help="sums have one order, whatever is in a batch")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    batches, prompts = whole_numbers(arguments.batch_sizes), whole_numbers(arguments.prompts)
    longest = max([arguments.context + max(arguments.steps, arguments.warm_up), *prompts]) + 2
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            str(write_config(Path(folder), arguments.shape)),
            device=arguments.device,
            load_format="dummy",
            quantization=arguments.quantization,
            kv_cache_dtype=arguments.kv_cache_dtype,
            deterministic=arguments.deterministic,
            max_model_len=longest,
            max_num_seqs=max(batches),
            max_num_batched_tokens=max([*prompts, *batches, 2048]) if prompts else None,
            enable_prefix_caching=False,
            speculative="off",
        )
        ceilings = measure_device_ceilings(torch.device(arguments.device if torch.cuda.is_available() else "cpu"))
        figures = [*decodes(llm, batches, arguments), *prefills(llm, prompts, arguments.runs)]
    print(
        f"{device_name()}, torch {torch.__version__}; copies {ceilings.read:,.0f} GB/s, bfloat16 products "
        f"{ceilings.peak('bfloat16'):,.0f} GOP/s\n"
    )
    rows, cells = [], []
    for figure in figures:
        memory, arithmetic = figure.bounds(ceilings)
        share = max(memory, arithmetic) / figure.seconds
        speed, milliseconds = (
            figure.tokens / figure.seconds,
            (1e3 * each for each in (figure.seconds, memory, arithmetic)),
        )
        cells.append([figure.what, f"{speed:,.1f}", *(f"{each:.2f}" for each in milliseconds), f"{share:.0%}"])
        rows.append(figure._asdict() | {"memory_seconds": memory, "arithmetic_seconds": arithmetic, "share": share})
    columns = ["", "tokens/s", "ms", "least by memory, ms", "by arithmetic, ms", "share"]
    print(reporting.table(columns, cells))
    if arguments.json is not None:
        told = {key: str(value) for key, value in vars(arguments).items() if key != "json"}
        found = {"device": device_name(), "options": told, "ceilings": msgspec.to_builtins(ceilings), "figures": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def whole_numbers(text: str) -> list[int]:
    """Those between commas."""
    return [int(part) for part in text.split(",") if part]


def device_name() -> str:
    """Of the GPU; of an interpreter where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "Triton's interpreter"


def decodes(llm: LLM, batches: list[int], arguments: argparse.Namespace) -> Iterator[Figure]:
    """A decode step at each batch size: the difference between many tokens and one, of the same prompts."""
    for batch in batches:
        run(llm, batch, arguments.context, arguments.warm_up)
        steps, moved, operations = [], 0.0, 0.0
        for _ in range(arguments.runs):
            first, whole = (
                run(llm, batch, arguments.context, 1),
                run(llm, batch, arguments.context, arguments.steps + 1),
            )
            steps.append((whole[0] - first[0]) / arguments.steps)
            moved, operations = ((b - a) / arguments.steps for a, b in zip(first[1:], whole[1:], strict=True))
        told(f"batch {batch}: {statistics.median(steps) * 1e3:.2f} ms a step")
        what = f"decode, batch {batch}, context {arguments.context}"
        yield Figure(what, batch, statistics.median(steps), moved, operations)


def prefills(llm: LLM, lengths: list[int], runs: int) -> Iterator[Figure]:
    """One prompt at a time, to its first token."""
    for length in lengths:
        run(llm, 1, length, 1)
        found = [run(llm, 1, length, 1) for _ in range(runs)]
        seconds = statistics.median(each[0] for each in found)
        told(f"prompt of {length}: {seconds * 1e3:.1f} ms")
        yield Figure(f"prompt of {length}", length, seconds, found[0][1], found[0][2])


SOURCE = random.Random(0)


def run(llm: LLM, batch: int, length: int, tokens: int) -> tuple[float, float, float]:
    """Seconds, bytes and operations of fresh prompts and so many tokens for each."""
    prompts = [[SOURCE.randrange(3, llm.vocab_size) for _ in range(length)] for _ in range(batch)]
    before, begun = llm.totals, time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
    seconds = time.perf_counter() - begun
    return seconds, llm.totals.bytes - before.bytes, llm.totals.operations - before.operations


def told(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
