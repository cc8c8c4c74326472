"""What a token costs as context and batch grow: decode steps of Penstock over a grid of contexts and batch sizes.

Every row of the largest batch gets a random prompt as long as the longest context; a shorter context is the beginning
of it. The prefix cache holds them all, so that decoding alone is timed: M further tokens over (time for M + 1 tokens -
time for 1). Rows share nothing with each other. The prompts themselves are not computed, which would take far longer
than all that is measured: their keys and values are zeros, and speed does not depend on what those say. Writes a page
with the figures, their JSON and a plot (which needs matplotlib: the extra "bench").
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import reporting
import torch

from penstock import LLM, SamplingParams
from penstock.kernels.batch import StepBatch
from penstock.kernels.program import Program

BLOCK = 16
# Sequences for which the KV pool has room beyond the batch: what the runs append must not push contexts out.
SPARE_SEQUENCES = 4


class Generator(Protocol):
    """What is measured: `penstock.LLM`, or anything that generates for a batch of prompts."""

    @property
    def vocab_size(self) -> int:
        """Number of logits."""

    def generate(self, prompts: Sequence[list[int]], params: SamplingParams) -> Sequence[Any]:
        """Complete all prompts together."""


@dataclass(frozen=True)
class Cost:
    """Decode steps of a batch whose sequences each have that many tokens before."""

    context: int
    batch: int
    milliseconds_per_step: float

    @property
    def milliseconds_per_token(self) -> float:
        """A step gives a token to every sequence of the batch."""
        return self.milliseconds_per_step / self.batch

    @property
    def tokens_per_second(self) -> float:
        """Of the whole batch."""
        return 1e3 / self.milliseconds_per_token


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout, or a hub name")
    parser.add_argument("--contexts", type=numbers, default=[128, 512, 2048, 8064], help="default 128,512,2048,8064")
    parser.add_argument("--batch-sizes", type=numbers, default=[1, 4, 16], help="default 1,4,16")
    parser.add_argument("--steps", type=int, default=32, help="M above (default 32)")
    parser.add_argument("--runs", type=int, default=3, help="timings of each, the median counts (default 3)")
    parser.add_argument("--quantization", default="none", help="none, int8 or int4 (default none)")
    parser.add_argument("--quantize-head", help="int8: the output head at 8 bits (default: as the other weights)")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of the computation (default: all)")
    parser.add_argument(
        "--write", type=Path, default=Path("build/contexts.md"), help="page (default build/contexts.md)"
    )
    return parser.parse_args(arguments)


def numbers(text: str) -> list[int]:
    """Ascending whole numbers from a comma-separated list."""
    found = sorted({int(part) for part in text.split(",")})
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text}: all must be positive")
    return found


def build_contexts(engine: Generator, rows: int, length: int) -> list[list[int]]:
    """Random prompts that the prefix cache holds afterwards."""

    def results_of_nothing(program: Program, batch: StepBatch) -> tuple[torch.Tensor]:
        """In place of `Program.results`: blocks stay as the executor cleared them, zeros in memory that was touched."""
        return (torch.zeros(len(batch.logit_rows), engine.vocab_size),)

    source = random.Random(0)
    prompts = [[source.randrange(10, engine.vocab_size) for _ in range(length)] for _ in range(rows)]
    with mock.patch.object(Program, "results", results_of_nothing):
        engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
    return prompts


def decode_cost(engine: Generator, prompts: Sequence[list[int]], steps: int, runs: int) -> float:
    """Milliseconds of one step, the median of some runs."""

    def seconds(tokens: int) -> float:
        begun = time.perf_counter()
        outputs = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
        taken = time.perf_counter() - begun
        # What is not in the cache would be computed again, and the difference of two times be mostly noise.
        least = min(output.cached_tokens for output in outputs)
        if least < len(prompts[0]) - BLOCK:
            raise SystemExit(f"Of {len(prompts[0])} tokens only {least} were still cached: the KV pool is too small.")
        return taken

    seconds(1)
    return statistics.median((seconds(steps + 1) - seconds(1)) / steps * 1e3 for _ in range(runs))


def measure(
    engine: Generator, contexts: Sequence[int], batch_sizes: Sequence[int], steps: int, runs: int
) -> list[Cost]:
    """The grid, contexts ascending within ascending batch sizes."""
    prompts = build_contexts(engine, max(batch_sizes), max(contexts))
    found = []
    for batch in batch_sizes:
        for context in contexts:
            beginnings = [prompt[:context] for prompt in prompts[:batch]]
            found.append(Cost(context, batch, decode_cost(engine, beginnings, steps, runs)))
            print(f"batch {batch}, context {context}: {found[-1].milliseconds_per_step:.1f} ms", file=sys.stderr)
    return found


def page(costs: Sequence[Cost], title: str, machine: str, workload: str, plot: str) -> str:
    """Both tables and the plot, in Markdown."""
    batches, contexts = sorted({cost.batch for cost in costs}), sorted({cost.context for cost in costs})
    grid = {(cost.context, cost.batch): cost for cost in costs}
    header = ["context", *(f"batch {batch}" for batch in batches)]
    speeds = [[context, *(grid[context, batch].tokens_per_second for batch in batches)] for context in contexts]
    prices = [[context, *(grid[context, batch].milliseconds_per_token for batch in batches)] for context in contexts]
    sections = [
        f"# {title}",
        f"Machine: {machine}.\n{workload}",
        "## Decode, tokens per second of the whole batch",
        reporting.table(header, speeds),
        "## Milliseconds a token",
        reporting.table(header, prices),
        f"![Milliseconds a token over the context, a line for each batch size]({plot})",
    ]
    return "\n\n".join(sections) + "\n"


def draw(costs: Sequence[Cost], title: str, path: Path) -> None:
    """Milliseconds a token over the context, a line for each batch size, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file; text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "penstock", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for batch in sorted({cost.batch for cost in costs}):
        line = [cost for cost in costs if cost.batch == batch]
        values = [cost.milliseconds_per_token for cost in line]
        axes.plot([cost.context for cost in line], values, marker="o", label=f"batch {batch}")
    contexts = sorted({cost.context for cost in costs})
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [f"{context:,}" for context in contexts])
    axes.set_ylim(bottom=0)
    axes.set(title=title, xlabel="tokens of context", ylabel="milliseconds a token")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    arguments = parse()
    contexts, batches = arguments.contexts, arguments.batch_sizes
    llm = LLM(
        arguments.model,
        threads=arguments.threads,
        quantization=arguments.quantization,
        quantize_head=arguments.quantize_head,
        max_model_len=max(contexts) + arguments.steps + 1,
        max_num_seqs=max(batches) + SPARE_SEQUENCES,
        speculative="off",
    )
    costs = measure(llm, contexts, batches, arguments.steps, arguments.runs)
    mode = arguments.quantization if arguments.quantization != "none" else "unquantized"
    mode += f" with an {arguments.quantize_head} head" if arguments.quantize_head else ""
    name = Path(arguments.model).name
    title = f"What a token costs: {name}, {mode}"
    workload = (
        f"{arguments.threads} threads; {arguments.steps} decode steps after contexts of random tokens that no two\n"
        f"rows share; medians of {arguments.runs} runs.\n\n"
        f"```\npython benchmarks/context_cost.py OUT/{name} --quantization {arguments.quantization}\n```"
    )
    arguments.write.parent.mkdir(parents=True, exist_ok=True)
    plot = arguments.write.with_suffix(".svg")
    raw = {"machine": reporting.machine(), "title": title, "workload": workload, "costs": list(map(asdict, costs))}
    arguments.write.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    arguments.write.write_text(page(costs, title, reporting.machine(), workload, plot.name))
    draw(costs, title, plot)


if __name__ == "__main__":
    main()
