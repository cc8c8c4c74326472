"""What is a disk beside the KV pool worth to conversations that the pool has no room for?

Conversations take turns in random order. Each turn's prompt is all that was said before and something new. Two engines
get the same turns by tens, one with a disk. The time of a turn is that to its first token.

    python benchmarks/kv_conversations.py MODEL [--conversations 500] [--turns 10] [--fit 50] [--cold]
        [--kv-cache-dtype int8]

With `--cold`, the system drops its copies of files before each turn, as if there were more of them than memory holds.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import reporting
from engine_workers import Worker
from kv_disk import drop_copies

# Tokens of a turn: what is new of its prompt, and its answer, which is made up.
ASKED, ANSWERED = 96, 32
# Turns that one engine takes before the other does: both feel what else the machine does.
AT_A_TIME = 10


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--quantization", default="int4", help="what weights are rounded to (default int4)")
    parser.add_argument("--kv-cache-dtype", default="auto", help="what keys and values are kept as, by both engines")
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument(
        "--fit", type=int, default=50, help="whole conversations for which the pool has room (default 50)"
    )
    parser.add_argument("--cold", action="store_true", help="read files from the disk, not from memory")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured (default: a temporary one)")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(json.loads(arguments.work))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        compare(arguments, Path(folder) / "kv")


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """All turns, by both engines."""
    options = {
        "model": arguments.model,
        "quantization": arguments.quantization,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "speculative": "off",
        "max_num_seqs": 1,
        "max_model_len": arguments.turns * (ASKED + ANSWERED) + 16,
    }
    plain = {**options, "blocks": arguments.fit * arguments.turns * (ASKED + ANSWERED) // 16}
    kept = {**plain, "kv_disk": str(folder), "kv_disk_size": 100 << 30}
    workers = {"with": Worker(__file__, kept), "without": Worker(__file__, plain)}
    order, rows = random.Random(0), []
    for turn in range(arguments.turns):
        conversations = order.sample(range(arguments.conversations), arguments.conversations)
        if arguments.cold:
            drop_copies(folder)
        taken: dict[str, list[float]] = {name: [] for name in workers}
        computed = dict.fromkeys(workers, 0)
        for number, first in enumerate(range(0, len(conversations), AT_A_TIME)):
            for name in ("with", "without") if number % 2 else ("without", "with"):
                found = workers[name].ask(turn, conversations[first : first + AT_A_TIME])
                taken[name] += found["seconds"]
                computed[name] += found["computed"]
        seconds = {name: statistics.median(each) for name, each in taken.items()}
        slow = {name: reporting.percentile(each, 0.99) or 0.0 for name, each in taken.items()}
        rows.append(
            (
                turn + 1,
                1000 * seconds["without"],
                1000 * seconds["with"],
                f"{seconds['with'] / seconds['without']:.1%}",
                f"{slow['with'] / slow['without']:.1%}",
                computed["without"],
                computed["with"],
                f"{computed['with'] / computed['without']:.1%}",
            )
        )
        print(*rows[-1], file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.close()
    read = ", files from the disk" if arguments.cold else ""
    reporting.report(
        f"{arguments.conversations} conversations, a pool for {arguments.fit} of them{read}",
        ("turn", "first token, ms", "with a disk", "part", "part of the p99", "tokens computed", "with a disk", "part"),
        rows,
        f"Each turn adds {ASKED + ANSWERED} tokens. Times are medians over the conversations, but for the p99's.",
    )


def work(options: dict[str, Any]) -> None:
    """In a process: a turn of conversations for each line of the standard input."""
    from penstock import LLM, SamplingParams
    from penstock.assembly.prepare import prepare
    from penstock.configuration.options import EngineOptions

    blocks = options.pop("blocks")
    spec = prepare(EngineOptions.of(**options), api_beside=False).config.cache.spec
    llm = LLM(**options, kv_cache_memory=blocks * spec.num_tables * spec.block_bytes)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    llm.generate({"prompt_token_ids": [1] * 15}, params)
    for line in sys.stdin:
        turn, conversations = json.loads(line)
        before, seconds = llm.load.prefill_tokens, []
        for conversation in conversations:
            luck = random.Random(conversation)
            said = [luck.randrange(5, 900) for _ in range(turn * (ASKED + ANSWERED) + ASKED)]
            began = time.perf_counter()
            llm.generate({"prompt_token_ids": said}, params)
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds, "computed": llm.load.prefill_tokens - before}), flush=True)


if __name__ == "__main__":
    main()
