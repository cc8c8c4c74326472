"""`penstock bench`: measurements in this process."""

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
    """Measure, show the figures as they come, and write them where asked."""
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigurationError(f"--json {json_file}: there is no directory {json_file.parent}.")
    console = Console()
    # A batch runs together only if all of it fits into the limits.
    engine["max_num_seqs"] = engine["max_num_seqs"] or max(batch_sizes)
    llm = LLM(**engine)
    table = Table(title=f"{engine['model']}: {input_len} tokens in, 1 + {output_len} out, median of {repeat}")
    for heading in ("batch", "prefill tokens/s", "decode tokens/s", "ms a step"):
        table.add_column(heading, justify="right")
    results: list[EngineFigures] = []
    with console.status("measuring"):
        for figures in measure_engine(llm, batch_sizes, input_len, output_len, llm.vocab_size, repeat):
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
