"""`penstock bench`: measurements in this process."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.bench.engine import EngineFigures, measure_engine
from penstock.cli.files import check_writable
from penstock.core.errors import ConfigurationError
from penstock.llm import LLM
from penstock.runtime.machine import machine_facts

if TYPE_CHECKING:
    from penstock.bench.kernels import Figures


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
        check_writable(json_file)
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
    for heading in ("batch", "prefill tokens/s", "decode tokens/s", "ms a token"):
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
                f"{figures.milliseconds_per_token:.3f}",
            )
    console.print(table)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode({"results": results}), indent=1))


def run_bench_kernels(
    operations: list[str] | None, formats: str, rows: list[int], threads: int | None, json_file: Path | None
) -> None:
    """Measure the native kernels and show their figures beside the machine's ceilings; no `operations` are all.

    Raises ConfigurationError where there are no native kernels, or no such operation or format.
    """
    from penstock.bench.kernels import FORMATS, measure_operations, operation_names
    from penstock.kernels.cpu.native import OBSTACLE, native
    from penstock.runtime.ceilings import measure_ceilings

    if OBSTACLE is not None:
        raise ConfigurationError(f"There is nothing to measure: {OBSTACLE}.")
    names = operation_names()
    for name in operations or ():
        if name not in names:
            raise ConfigurationError(f"--operation {name!r} is none of {', '.join(names)}.")
    asked = {name.strip() for name in formats.split(",")}
    chosen = [format for format in FORMATS if format in asked]
    if len(chosen) != len(asked):
        raise ConfigurationError(f"--format {formats!r} is not a list of {', '.join(FORMATS)}.")
    if json_file is not None:
        check_writable(json_file)
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
    console.print("Of the ceiling: the larger share, of memory or of arithmetic; above 100% is from caches.")
    results: list[Figures] = []
    with console.status("measuring"):
        measured = measure_operations(operations or names, chosen, rows, ceilings)
        for name, group in itertools.groupby(measured, lambda figures: figures.operation):
            results.extend(own := list(group))
            console.print(_kernel_table(name, own))
    if json_file is not None:
        value = {"ceilings": ceilings, "operations": results}
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1))


def _kernel_table(operation: str, results: "list[Figures]") -> Table:
    """One line for each figure of an operation; columns that say nothing of it are left out."""
    formats, products = any(figures.format for figures in results), any(figures.gigaoperations for figures in results)
    table = Table("shape", *(["format"] if formats else []), title=operation)
    for heading in ("rows", "µs", "GB/s", *(["GOP/s"] if products else []), "of ceiling"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figures in results:
        table.add_row(
            figures.case,
            *([figures.format] if formats else []),
            str(figures.rows),
            f"{figures.microseconds:,.{0 if figures.microseconds >= 100 else 1}f}",
            f"{figures.gigabytes:.1f}",
            *([f"{figures.gigaoperations:,.0f}"] if products else []),
            f"{figures.of_ceiling:.0%}",
        )
    return table
