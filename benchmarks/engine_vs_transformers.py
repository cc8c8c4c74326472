"""`penstock bench engine` against transformers, alternating in one run on one machine.

Each round runs both, one after the other, in processes of their own, so that a noisy neighbour hits both alike; the
medians over the rounds are compared. Decode: B sequences of a 16-token prompt, (time for M + 1 tokens - time for 1).
Needs transformers in the same environment.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import reporting
from serving import PENSTOCK

PEER = Path(__file__).parent / "peers" / "bench_transformers.py"
Figures = dict[int, float]


def run_json(command: Sequence[str]) -> list[dict[str, Any]]:
    """Run a benchmark that writes its results to the file named after --json."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "results.json"
        subprocess.run([*command, "--json", str(path)], check=True, stdout=sys.stderr.fileno())
        results: list[dict[str, Any]] = json.loads(path.read_text())["results"]
        return results


def decode_figures(results: Sequence[dict[str, Any]]) -> Figures:
    """Decode speed by batch size."""
    return {result["batch_size"]: result["decode_tokens_per_second"] for result in results}


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("model", help="a directory in Hugging Face's layout")
    parser.add_argument("--batch-sizes", default="1,4,16,32", help="comma-separated (default 1,4,16,32)")
    parser.add_argument("--input-len", type=int, default=16, help="prompt tokens (default 16)")
    parser.add_argument("--output-len", type=int, default=32, help="M above (default 32)")
    parser.add_argument("--rounds", type=int, default=3, help="how often both run (default 3)")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of both (default: all cores)")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32")
    arguments = parser.parse_args()

    common = ["--dtype", arguments.dtype, "--threads", str(arguments.threads)]
    lengths = ["--input-len", str(arguments.input_len), "--output-len", str(arguments.output_len)]
    ours = [*PENSTOCK, "bench", "engine", arguments.model, "--batch-size", arguments.batch_sizes, *lengths]
    theirs = [sys.executable, str(PEER), arguments.model, "--batch-sizes", arguments.batch_sizes, *lengths]
    theirs += ["--runs", "1"]
    figures: list[tuple[Figures, Figures]] = []
    for _ in range(arguments.rounds):
        pair = [decode_figures(run_json([*command, *common])) for command in (ours, theirs)]
        figures.append((pair[0], pair[1]))
    rows = []
    for size in map(int, arguments.batch_sizes.split(",")):
        penstock = statistics.median(mine[size] for mine, _ in figures)
        peer = statistics.median(other[size] for _, other in figures)
        rows.append((size, penstock, peer, f"{penstock / peer:.2f}"))
    reporting.report(
        f"Decode of {Path(arguments.model).name} in {arguments.dtype}, median of {arguments.rounds} rounds",
        ("batch", "penstock, tokens/s", "transformers, tokens/s", "ratio"),
        rows,
    )


if __name__ == "__main__":
    main()
