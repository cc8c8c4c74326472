"""How long choosing a step's tokens takes, with the native kernels and with numpy, their reference.

    python benchmarks/sampling.py [--rounds N] [--threads N]

Logits are float32, normal with a standard deviation of 3; each row draws random numbers of its own. Times are of a
whole `Sampler.sample`, medians over alternating rounds.
"""

import time

import reporting
import torch

from penstock.core.plan import BeginRow
from penstock.core.sampling import SamplingParams
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.sampling import RowState, Sampler
from penstock.sampling.reference import Reference

ROWS = (1, 32)
VOCABULARIES = (32_000, 151_936)
CASES = {
    "greedy": {"temperature": 0.0},
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 0.7, top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "temperature 0.7, top_k 50": {"temperature": 0.7, "top_k": 50},
    "temperature 0.7, min_p 0.05": {"temperature": 0.7, "min_p": 0.05},
}


def new_rows(count: int, case: str) -> list[RowState]:
    """Rows of one kind at their first token, each with a seed of its own."""
    return [RowState(BeginRow(i, 0, [1], SamplingParams(seed=i, **CASES[case]), (2,)), [1]) for i in range(count)]


def seconds(sampler: Sampler, logits: torch.Tensor, rows: list[RowState]) -> float:
    """One step's time."""
    index = range(len(rows))
    start = time.perf_counter()
    sampler.sample(logits, rows, index)
    return time.perf_counter() - start


def measure(vocabulary: int, count: int, case: str, rounds: int) -> tuple[float, float]:
    """Median milliseconds of a step: with numpy, with the native kernels."""
    logits = torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    samplers = (Sampler(vocabulary, Reference(vocabulary).choose), Sampler(vocabulary))
    rows = [new_rows(count, case) for _ in samplers]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for sampler, own, into in zip(samplers, rows, times, strict=True):
            taken = seconds(sampler, logits, own)
            if turn:  # the first touches new memory
                into.append(taken * 1e3)
    return reporting.median(times[0]) or 0.0, reporting.median(times[1]) or 0.0


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="steps of each case (default 30)")
    parser.add_argument("--threads", type=int, default=reporting.cores(), help="of the native kernels (default all)")
    arguments = parser.parse_args()
    if OBSTACLE is not None:
        raise SystemExit(f"There is nothing to compare: {OBSTACLE}.")
    native.set_threads(arguments.threads)
    table = []
    for vocabulary in VOCABULARIES:
        for count in ROWS:
            for case in CASES:
                numpy, compiled = measure(vocabulary, count, case, arguments.rounds)
                table.append((vocabulary, count, case, numpy, compiled, numpy / compiled))
    header = ("vocabulary", "rows", "sampling", "numpy ms", "native ms", "numpy / native")
    reporting.report(f"Choosing tokens with {arguments.threads} threads", header, table)


if __name__ == "__main__":
    main()
