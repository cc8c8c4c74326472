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
from penstock.runtime.machine import machine_facts


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


# The projections of a model in Llama 3.2 1B's shape, (outputs, inputs).
LINEAR_SHAPES = ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048))


def run_bench_kernels(formats: str, rows: list[int], threads: int | None, json_file: Path | None) -> None:
    """Measure the native kernels and show their figures beside the machine's ceilings.

    Raises ConfigurationError where there are no native kernels, or no such format.
    """
    from penstock.bench.kernels import FORMATS, measure_ceilings, measure_linear
    from penstock.kernels.cpu.native import OBSTACLE, native

    if OBSTACLE is not None:
        raise ConfigurationError(f"There is nothing to measure: {OBSTACLE}.")
    asked = {name.strip() for name in formats.split(",")}
    chosen = [format for format in FORMATS if format in asked]
    if len(chosen) != len(asked):
        raise ConfigurationError(f"--format {formats!r} is not a list of {', '.join(FORMATS)}.")
    if json_file is not None:
        _check_writable(json_file)
    if threads is not None and threads < 1:
        raise ConfigurationError(f"--threads is {threads}; it must be at least 1.")
    native.set_threads(threads or machine_facts(api_beside=False).cores)
    console = Console()
    with console.status("measuring the machine"):
        ceilings = measure_ceilings()
    peaks = ", ".join(f"{name} {figure:,.0f} GOP/s" for name, figure in ceilings.arithmetic.items() if figure)
    console.print(
        f"{native.threads()} threads, {native.instruction_set()}: memory read at {ceilings.read:.1f} GB/s; {peaks}",
        highlight=False,
    )
    table = Table("weights", "outputs × inputs", title="linear: the larger share is of memory or of arithmetic")
    for heading in ("rows", "µs", "GB/s", "GOP/s", "of ceiling"):
        table.add_column(heading, justify="right")
    results = []
    with console.status("measuring"):
        for figures in measure_linear(chosen, LINEAR_SHAPES, rows, ceilings):
            results.append(figures)
            table.add_row(
                figures.format,
                f"{figures.outputs:,} × {figures.inputs:,}",
                str(figures.rows),
                f"{figures.microseconds:,.0f}",
                f"{figures.gigabytes:.1f}",
                f"{figures.gigaoperations:,.0f}",
                f"{figures.of_ceiling:.0%}",
            )
    console.print(table)
    if json_file is not None:
        value = {"ceilings": ceilings, "linear": results}
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))


def _check_writable(file: Path) -> None:
    """Raise ConfigurationError where the figures could not be written after a long measurement."""
    if not file.parent.is_dir():
        raise ConfigurationError(f"--json {file}: there is no directory {file.parent}.")
    if file.is_dir():
        raise ConfigurationError(f"--json {file} is a directory; give the name of a file.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigurationError(f"--json {file} cannot be written to; give a file that can.")
