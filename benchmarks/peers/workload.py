"""The workload that every engine gets, and how its speed is computed from times.

Prefill: one prompt of 512 tokens, over the time to its first token. Decode at batch size B: B prompts of 16 tokens and
M further tokens each, over (time for M + 1 tokens - time for 1). Random prompts, greedy, no prefix cache; the best of
some runs counts, since noise only slows.
"""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

PREFILL_LENGTH = 512

Generate = Callable[[list[list[int]], int], float]
"""(prompts as token ids, output tokens of each) → seconds."""


def arguments_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all drivers share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the checkpoint, in the peer's format")
    parser.add_argument("--batch-sizes", default="1,4,16,32", help="comma-separated (default 1,4,16,32)")
    parser.add_argument("--input-len", type=int, default=16, help="prompt tokens of a decode run (default 16)")
    parser.add_argument("--output-len", type=int, default=64, help="M above (default 64)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each kind, the best counts (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the computation (default 2)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser


def random_prompts(count: int, length: int) -> list[list[int]]:
    """Prompts that no cache has seen; ids are below any tokenizer's size here."""
    return [[random.randrange(10, 30000) for _ in range(length)] for _ in range(count)]


def measure(generate: Generate, arguments: argparse.Namespace) -> None:
    """Run the workload, print one line for each result, and write them all where --json says."""

    def best(count: int, input_length: int, output_length: int) -> float:
        return min(generate(random_prompts(count, input_length), output_length) for _ in range(arguments.runs))

    random.seed(0)
    generate(random_prompts(1, arguments.input_len), 4)
    prefill = PREFILL_LENGTH / best(1, PREFILL_LENGTH, 1)
    print(f"prefill {PREFILL_LENGTH}: {prefill:.1f} tokens/s", flush=True)
    results = []
    for size in map(int, arguments.batch_sizes.split(",")):
        first = best(size, arguments.input_len, 1)
        seconds = best(size, arguments.input_len, arguments.output_len + 1) - first
        decode = size * arguments.output_len / seconds
        print(f"decode batch {size}: {decode:.1f} tokens/s", flush=True)
        results.append(
            {
                "batch_size": size,
                "prefill_tokens_per_second": size * arguments.input_len / first,
                "decode_tokens_per_second": decode,
            }
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"prefill_512_tokens_per_second": prefill, "results": results}, indent=1))
