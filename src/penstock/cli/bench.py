"""`penstock bench`: measurements in this process."""

import os
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.bench.engine import EngineFigures, measure_engine
from penstock.core.errors import ConfigurationError
from penstock.llm import LLM


def run_bench_engine(
    engine: dict[str, Any],
    input_len: int,
    output_len: int,
    batch_sizes: list[int],
    repeat: int,
    json_file: Path | None,
) -> None:
    """Measure, show the figures as they come, and write them where asked.

    Raises ConfigurationError where a batch would not run together: its figures would be those of another batch size.
    """
    if json_file is not None:
        _check_writable(json_file)
    largest, limit = max(batch_sizes), engine["max_num_seqs"]
    if limit is not None and largest > limit:
        raise ConfigurationError(
            f"--batch-size {largest} is more than --max-num-seqs {limit}, so it would not run together; raise the "
            "second, or leave it out."
        )
    engine["max_num_seqs"] = limit or largest
    console = Console()
    llm = LLM(**engine)
    table = Table(title=f"{engine['model']}: {input_len} tokens in, 1 + {output_len} out, median of {repeat}")
    for heading in ("batch", "prefill tokens/s", "decode tokens/s", "ms a step"):
        table.add_column(heading, justify="right")
    results: list[EngineFigures] = []
    with console.status("measuring"):
        for figures in measure_engine(llm, batch_sizes, input_len, output_len, llm.vocab_size, repeat):
            if llm.load.preemptions:
                raise ConfigurationError(
                    f"The KV pool is too small for {figures.batch_size} prompts of {input_len} + {output_len} tokens: "
                    "some were preempted, so the figures would say nothing; raise --kv-cache-memory, or lower "
                    "--batch-size."
                )
            results.append(figures)
            table.add_row(
                str(figures.batch_size),
                f"{figures.prefill_tokens_per_second:,.1f}",
                f"{figures.decode_tokens_per_second:,.1f}",
                f"{figures.milliseconds_per_step:.3f}",
            )
    console.print(table)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode({"results": results}), indent=1))


def _check_writable(file: Path) -> None:
    """Raise ConfigurationError where the figures could not be written after a long measurement."""
    if not file.parent.is_dir():
        raise ConfigurationError(f"--json {file}: there is no directory {file.parent}.")
    if file.is_dir():
        raise ConfigurationError(f"--json {file} is a directory; give the name of a file.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigurationError(f"--json {file} cannot be written to; give a file that can.")
