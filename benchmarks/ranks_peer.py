"""Several processes that compute a model together, beside as many of vLLM's, which take turns.

    python benchmarks/ranks_peer.py MODEL --vllm PYTHON [--ranks 2] [--batch-sizes 1,8] [--rounds 3]

Each round starts either engine anew, with `--tensor-parallel-size` and a thread for each process, on the same
checkpoint; which is first changes from round to round. With `--quantization`, Penstock rounds its weights, and vLLM
takes the checkpoint of `--vllm-model`. Each gets the workload of peers/workload.py. Speeds are medians of rounds; a
ratio is the median of the rounds' own. PYTHON is that of an environment with vLLM (peers/README.md).
"""

import statistics
import sys
from pathlib import Path
from typing import Any

import reporting
from comparison.children import run_child

PEERS = Path(__file__).parent / "peers"


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--vllm", metavar="PYTHON", required=True, help="interpreter of the environment with vLLM")
    parser.add_argument("--quantization", default="none", help="of Penstock's weights (default none)")
    parser.add_argument("--vllm-model", help="checkpoint for vLLM instead")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch-sizes", default="1,8", help="comma-separated (default 1,8)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--time-limit", type=float, default=900, help="seconds for one start of an engine (default 900)"
    )
    arguments = parser.parse_args()
    engines = {"penstock": sys.executable, "vllm": arguments.vllm}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for number in range(arguments.rounds):
        for name in sorted(engines, reverse=bool(number % 2)):
            found[name].append(speeds(name, engines[name], arguments))
            print(f"round {number + 1}: {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    rows = [[part, *compared(found, part)] for part in found["penstock"][0]]
    header = ["tokens per second", "Penstock", "vLLM", "ratio"]
    reporting.report(f"{arguments.ranks} ranks with a thread each, beside vLLM's", header, rows)


def speeds(name: str, python: str, arguments: Any) -> dict[str, float]:
    """Tokens per second of each part of the workload. Ends the run where there are none."""
    options = ["--batch-sizes", arguments.batch_sizes, "--ranks", str(arguments.ranks)]
    model = arguments.model
    if name == "penstock":
        options += ["--quantization", arguments.quantization]
    else:
        model = arguments.vllm_model or model
    command = [python, str(PEERS / f"bench_{name}.py"), model, *options, "--threads", str(arguments.ranks)]
    outcome = run_child(command, arguments.time_limit)
    if outcome.figures is None:
        raise SystemExit(f"{name}: {outcome.error}")
    decode = {f"decode, {size} sequences": speed for size, speed in outcome.figures["decode"].items()}
    return {"prefill, 512 tokens": outcome.figures["prefill"], **decode}


def compared(found: dict[str, list[dict[str, float]]], part: str) -> tuple[float, float, float]:
    """Medians of both, and of their ratios."""
    ours, theirs = ([each[part] for each in found[name]] for name in ("penstock", "vllm"))
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


if __name__ == "__main__":
    main()
