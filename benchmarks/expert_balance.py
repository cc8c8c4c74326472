"""How evenly are rows of experts shared out over processes, and what do places and copies by counts of choices change?

    python benchmarks/expert_balance.py MODEL [--groups 4] [--copies 0 1 2] [--prompts 32]

MODEL is a directory with a mixture of experts. The load is skewed: all prompts are of the same few tokens. An engine
whose experts stand in their order counts choices; others place experts by these, with room for copies. Each runs in a
process of its own. Balance is what groups compute in the mean by what the busiest one does, in each layer of a step.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import reporting

from penstock import LLM, SamplingParams

OUTPUT = 32


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--copies", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--one", help="what one engine is to be, as JSON; for processes that this program starts")
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measured(arguments.model, arguments.prompts, json.loads(arguments.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        counts = str(Path(folder) / "counts.json")
        options = {"expert_parallel_size": arguments.groups, "threads": arguments.groups, "expert_counts": counts}
        rows = [["in order", *apart(arguments.model, arguments.prompts, options)]]
        for copies in arguments.copies:
            found = apart(arguments.model, arguments.prompts, {**options, "expert_copies": copies})
            rows.append([f"by counts, {copies} copies", *found])
    header = ["experts", "balance", "tokens per second"]
    reporting.report(f"{arguments.groups} groups of one process", header, rows)


def apart(model: str, prompts: int, options: dict[str, object]) -> list[float]:
    """What an engine in a process of its own has measured."""
    command = [sys.executable, __file__, model, "--prompts", str(prompts), "--one", json.dumps(options)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: list[float] = json.loads(answer.splitlines()[-1])
    return found


def measured(model: str, prompts: int, options: dict[str, object]) -> list[float]:
    """Balance and tokens per second of prompts and outputs."""
    llm = LLM(model, packed_cache="off", **options)
    given = [[20 + (number + place) % 24 for place in range(64 + number)] for number in range(prompts)]
    before, began = llm.load, time.perf_counter()
    llm.generate(given, SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True))
    seconds, after = time.perf_counter() - began, llm.load
    rows, busiest = after.expert_rows - before.expert_rows, after.expert_rows_busiest - before.expert_rows_busiest
    return [rows / busiest, (sum(map(len, given)) + OUTPUT * prompts) / seconds]


if __name__ == "__main__":
    main()
