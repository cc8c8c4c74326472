"""How much of the KV cache's memory is allocated but unused, and how many sequences fit because of it.

Runs the scheduler and the block manager, without a model, over the lengths of a trace, all requests being queued at
once. After each step's allocation, the slots of all blocks in use are compared with the tokens whose KV is in them.
The same pool cut into slots of the longest request's length, as without paging, is what it is compared with.
"""

import argparse
import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import reporting

from penstock.bench.load.traces import read_trace
from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.core.plan import StepPlan, StepResult
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.scheduler.build import build_scheduler
from penstock.simulation.loop import Arrival, one_token_each, play

VOCABULARY = 32000
SAMPLE = Path(__file__).with_name("sample_trace.csv")


@dataclass(frozen=True)
class Lengths:
    """Tokens of one request."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        """Prompt and output together."""
        return self.prompt + self.output


def read_lengths(path: Path, count: int, divisor: int) -> list[Lengths]:
    """The first `count` requests of the trace, both lengths divided by `divisor`, at least 1 each."""
    requests = itertools.islice(read_trace(path), count)
    return [Lengths(max(1, request.prompt // divisor), max(1, request.output // divisor)) for request in requests]


def at_once(requests: Sequence[Lengths]) -> list[Arrival]:
    """Requests of these lengths, with random prompts, all of which come at the beginning."""
    generator = random.Random(0)
    return [
        Arrival(
            0.0,
            Request(
                request_id=index,
                prompt_token_ids=generator.choices(range(VOCABULARY), k=request.prompt),
                sampling=SamplingParams(max_tokens=request.output, seed=0),
            ),
        )
        for index, request in enumerate(requests)
    ]


def run(requests: Sequence[Lengths], blocks: int, arguments: argparse.Namespace) -> tuple[list[float], int]:
    """Serve all requests from a pool of `blocks` blocks: unused share of allocated slots by step, and preemptions."""
    spec = build_kv_spec([LayerKV(kv_heads=1, head_dim=1)], "bfloat16", arguments.block_size)
    config = SchedulerConfig(
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_model_len=max(request.total for request in requests),
    )
    scheduler = build_scheduler(config, CacheConfig(spec, blocks, prefix_caching=False))
    waste: list[float] = []

    def execute(plan: StepPlan) -> StepResult:
        # A running sequence without a row in this step counts as unused, which only makes the figure worse.
        used = sum(row.start + row.count for row in plan.rows)
        waste.append(1 - used / (scheduler.snapshot().blocks_used * spec.block_size))
        return one_token_each(plan)

    for _ in play(scheduler, at_once(requests), execute):
        pass
    return waste, scheduler.snapshot().preemptions


def fitting(requests: Sequence[Lengths], blocks: int, block_size: int) -> float:
    """How many successive requests fit into `blocks` at their full length, in the mean over the first of them."""
    needs = [-(-request.total // block_size) for request in requests]
    counts = []
    for first in range(len(needs)):
        left, count = blocks, 0
        while count < len(needs) and (need := needs[(first + count) % len(needs)]) <= left:
            left -= need
            count += 1
        counts.append(count)
    return statistics.fmean(counts)


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--trace", type=Path, default=SAMPLE, help="lengths, as Azure or Mooncake write them")
    parser.add_argument("--requests", type=int, default=200, help="how many of its first requests (default 200)")
    parser.add_argument("--divisor", type=int, default=4, help="what lengths are divided by (default 4)")
    parser.add_argument("--pool-tokens", type=int, default=32768, help="slots in the pool (default 32768)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens in a block (default 16)")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="sequences that run at a time (default 256)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="positions in a step (default 2048)")
    arguments = parser.parse_args()

    requests = read_lengths(arguments.trace, arguments.requests, arguments.divisor)
    blocks = arguments.pool_tokens // arguments.block_size
    waste, preemptions = run(requests, blocks, arguments)
    longest = max(request.total for request in requests)
    slots = blocks * arguments.block_size // longest
    pages = fitting(requests, blocks, arguments.block_size)
    rows = [
        ("KV waste, mean over steps", f"{statistics.fmean(waste):.2%}"),
        ("KV waste, worst step", f"{max(waste):.2%}"),
        ("preemptions", preemptions),
        (f"sequences that fit, in slots of {longest:,} tokens", slots),
        ("sequences that fit, in blocks", pages),
    ]
    notes = f"Paged, the pool holds {pages / slots:.1f} times as many sequences."
    prompt, output = (
        statistics.fmean(lengths) for lengths in zip(*((r.prompt, r.output) for r in requests), strict=True)
    )
    reporting.report(
        f"{len(requests)} requests, {prompt:.0f} prompt and {output:.0f} output tokens in the mean, "
        f"pool of {blocks:,} blocks of {arguments.block_size}",
        ("figure", "value"),
        rows,
        notes,
    )


if __name__ == "__main__":
    main()
