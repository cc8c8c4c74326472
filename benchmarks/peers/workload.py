"""The workload that every engine gets, and what its driver prints: one line of JSON.

Prefill: one prompt of 512 tokens, over the time to its first token. Decode at batch size B: B prompts of 16 tokens and
M further tokens each, over (time for M + 1 tokens - time for 1). Random prompts, greedy, no prefix cache; the best of
some runs counts, since noise only slows. Needs the standard library alone: it runs in every engine's environment.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFILL_LENGTH = 512
MAX_SEQUENCES = 64
MAX_LENGTH = 2048
KV_GIB = 4
# The variable in which a child is told when it was launched, on the clock that all processes share (monotonic).
LAUNCHED = "BENCHMARK_LAUNCHED"

Generate = Callable[[list[list[int]], int], float]
"""(prompts as token ids, output tokens of each) → seconds."""


@dataclass(frozen=True)
class Engine:
    """An engine that was loaded.

    Attributes:
        generate: how it is used.
        weight_bytes: what one decode step reads of its weights.
        settings: what it was told beyond the workload.
    """

    generate: Generate
    weight_bytes: int
    settings: dict[str, Any]


def arguments_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all drivers share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the checkpoint, in the engine's format")
    parser.add_argument("--batch-sizes", default="1,4,16,32", help="comma-separated (default 1,4,16,32)")
    parser.add_argument("--input-len", type=int, default=16, help="prompt tokens of a decode run (default 16)")
    parser.add_argument("--output-len", type=int, default=64, help="M above (default 64)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each kind, the best counts (default 2)")
    parser.add_argument("--threads", type=int, default=len(usable_cores()), help="of the computation (default: all)")
    return parser


def trials_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of drivers that answer trials of bounded contexts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the checkpoint's directory")
    parser.add_argument("trials", type=Path, help="the file that bounded_peers.py writes")
    parser.add_argument("--threads", type=int, default=len(usable_cores()), help="of the computation (default: all)")
    return parser


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def drive(arguments: argparse.Namespace, packages: Iterable[str], load: Callable[[argparse.Namespace], Engine]) -> None:
    """Load the engine, run the workload, and print the figures with the versions of `packages`."""
    # Without a parent that says when it launched this process, its start and the first imports are missing.
    launched = float(os.environ.get(LAUNCHED, time.monotonic()))
    engine = load(arguments)
    ready = time.monotonic() - launched
    print(f"ready after {ready:.1f} s", file=sys.stderr, flush=True)
    figures = {
        "ready_seconds": ready,
        **measure(engine.generate, arguments),
        "weight_bytes": engine.weight_bytes,
        "versions": {"python": platform.python_version(), **versions(packages)},
        "settings": {"threads": arguments.threads, **engine.settings},
    }
    print(json.dumps(figures), flush=True)


def measure(generate: Generate, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of prefill and, by batch size, of decode."""
    # Seeded, so that all engines get the same prompts.
    source = random.Random(0)

    def best(count: int, input_length: int, output_length: int) -> float:
        return min(generate(random_prompts(source, count, input_length), output_length) for _ in range(arguments.runs))

    generate(random_prompts(source, 1, arguments.input_len), 4)
    prefill = PREFILL_LENGTH / best(1, PREFILL_LENGTH, 1)
    print(f"prefill {PREFILL_LENGTH}: {prefill:.1f} tokens/s", file=sys.stderr, flush=True)
    decode = {}
    for size in map(int, arguments.batch_sizes.split(",")):
        first = best(size, arguments.input_len, 1)
        seconds = best(size, arguments.input_len, arguments.output_len + 1) - first
        if seconds <= 0:
            raise SystemExit(f"{arguments.output_len} tokens took no longer than noise: give a larger --output-len.")
        decode[str(size)] = size * arguments.output_len / seconds
        print(f"decode batch {size}: {decode[str(size)]:.1f} tokens/s", file=sys.stderr, flush=True)
    return {"prefill": prefill, "decode": decode}


def random_prompts(source: random.Random, count: int, length: int) -> list[list[int]]:
    """Prompts that no cache has seen; ids are below any tokenizer's size here."""
    return [[source.randrange(10, 30000) for _ in range(length)] for _ in range(count)]


def files_bytes(model: str, pattern: str = "*.safetensors") -> int:
    """Bytes of a model's weight files: each is read once a step where head and embedding are one tensor."""
    return sum(path.stat().st_size for path in Path(model).glob(pattern))


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those distributions that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
