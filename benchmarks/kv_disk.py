"""What is a disk beside the KV pool worth after a restart, and what does writing to it cost? Or a shared store?

The time to the first token of a long prompt is measured in new processes: computed, and read from the disk that an
earlier process has written to. Before it is read, the operating system is told to drop its copies of the files. The
processes take turns. Then a batch is computed with and without a disk, each a process that stays, in turn again.

With --store, prompts go to a store that machines share, and come from there.

    python benchmarks/kv_disk.py MODEL [--quantization int4] [--tokens 8192] [--rounds 5] [--store URL]
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import reporting
from engine_workers import Worker

LENGTH, OUTPUT, BATCH = 512, 32, 8


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a checkpoint that takes so long a prompt")
    parser.add_argument("--quantization", default="int4", help="what weights are rounded to (default int4)")
    parser.add_argument("--tokens", type=int, default=8192, help="of the long prompt (default 8192)")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement (default 5)")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured (default: a temporary one)")
    parser.add_argument("--store", metavar="URL", help="as of --kv-store, with nothing in it, instead of a disk")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(json.loads(arguments.work))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        restarts(arguments, Path(folder) / "restarts")
        writes(arguments, Path(folder) / "writes")


def restarts(arguments: argparse.Namespace, folder: Path) -> None:
    """A prompt that is new, and the same one after a restart."""
    options = engine_options(arguments, max_model_len=arguments.tokens + 16, max_num_seqs=1)
    rows: list[tuple[float, float]] = []
    for seed in range(arguments.rounds):
        kept = {**options, **keeping(arguments, folder)}
        computed = one_turn(kept, seed, arguments.tokens)
        drop_copies(folder)
        read = one_turn(kept, seed, arguments.tokens)
        rows.append((computed, read))
        print(f"round {seed + 1}: {computed:.2f} s, {read:.2f} s", file=sys.stderr, flush=True)
    files = [path.stat().st_size for path in folder.glob("*/??/*")]
    reporting.report(
        f"First token of a prompt of {arguments.tokens:,} tokens, seconds",
        ("computed", "read after a restart", "part of it, median", "least", "greatest", "MiB in files"),
        [
            (
                *(statistics.median(row[side] for row in rows) for side in (0, 1)),
                *shares([read / computed for computed, read in rows]),
                sum(files) / arguments.rounds / 2**20,
            )
        ],
        f"{arguments.rounds} rounds of two processes each; copies of files in memory are dropped in between.",
    )


def writes(arguments: argparse.Namespace, folder: Path) -> None:
    """A batch of new prompts, with what keeps prefixes and without."""
    options = engine_options(arguments, max_model_len=LENGTH + OUTPUT, max_num_seqs=BATCH)
    ratios = []
    with ExitStack() as stack:
        keeps = stack.enter_context(Worker(__file__, {**options, **keeping(arguments, folder)}))
        without = stack.enter_context(Worker(__file__, options))
        for number in range(2 * arguments.rounds + 1):
            order = (keeps, without) if number % 2 else (without, keeps)
            taken = {each: each.ask(number, LENGTH, BATCH, OUTPUT) for each in order}
            if number:
                ratios.append(taken[without] / taken[keeps])
    reporting.report(
        f"Throughput of {BATCH} prompts of {LENGTH} tokens with {OUTPUT} tokens each, with what keeps prefixes",
        ("of that without, median", "least", "greatest"),
        [shares(ratios)],
        f"{len(ratios)} pairs of turns.",
    )


def shares(ratios: list[float]) -> tuple[str, str, str]:
    """Median, least and greatest."""
    return f"{statistics.median(ratios):.1%}", f"{min(ratios):.1%}", f"{max(ratios):.1%}"


def engine_options(arguments: argparse.Namespace, **others: Any) -> dict[str, Any]:
    """What both kinds of engines have."""
    return {"model": arguments.model, "quantization": arguments.quantization, "speculative": "off", **others}


def keeping(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The options of what keeps prefixes."""
    if arguments.store is None:
        return {"kv_disk": str(folder)}
    # Of no prompt before this run.
    secret = folder.with_name("secret")
    if not secret.exists():
        secret.write_text(os.urandom(32).hex())
    return {"kv_store": arguments.store, "prefix_secret_file": str(secret)}


def one_turn(options: dict[str, Any], seed: int, length: int) -> float:
    """Seconds of one prompt in a process of its own, which writes all that it has computed."""
    with Worker(__file__, options) as worker:
        return float(worker.ask(seed, length, 1, 1))


def drop_copies(folder: Path) -> None:
    """Have the operating system forget what is in its memory of the files, which are all on the disk."""
    for path in folder.glob("*/??/*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def work(options: dict[str, Any]) -> None:
    """In a process: compute what each line of the standard input asks for, and print its seconds."""
    from penstock import LLM, SamplingParams

    llm = LLM(**options)
    # What a process does once is not the disk's.
    llm.generate({"prompt_token_ids": [1] * 15}, SamplingParams(max_tokens=2, temperature=0.0))
    for line in sys.stdin:
        seed, length, count, output = json.loads(line)
        luck = random.Random(seed)
        prompts = [{"prompt_token_ids": [luck.randrange(5, 900) for _ in range(length)]} for _ in range(count)]
        began = time.perf_counter()
        llm.generate(prompts, SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True))
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
