"""Lengths of real requests from a trace file.

The format is that of the Azure LLM inference traces: a CSV file with the columns TIMESTAMP, ContextTokens and
GeneratedTokens. `sample_trace.csv` beside this file has 200 made-up requests (log-normal lengths, seed 0) in it.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

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


def read_lengths(path: Path, count: int, divisor: int = 1) -> list[Lengths]:
    """The first `count` requests of the trace, both lengths divided by `divisor`, at least 1 each."""
    lengths = []
    with path.open(newline="") as file:
        for record in csv.DictReader(file):
            try:
                prompt, output = int(record["ContextTokens"]), int(record["GeneratedTokens"])
            except (KeyError, TypeError, ValueError):
                raise SystemExit(f"{path} has no whole numbers in ContextTokens and GeneratedTokens.") from None
            lengths.append(Lengths(max(1, prompt // divisor), max(1, output // divisor)))
            if len(lengths) == count:
                break
    if not lengths:
        raise SystemExit(f"{path} has no requests.")
    return lengths
