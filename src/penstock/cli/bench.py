"""`penstock bench`: measurements in this process."""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.table import Table

from penstock.bench.engine import EngineFigures, as_text, measure_engine
from penstock.cli.files import check_writable, json_bytes
from penstock.configuration.devices import resolve_device
from penstock.core.ceilings import Ceilings
from penstock.core.devices import FP8_CAPABILITY, Gpu, GpuFacts, dotted
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.llm import LLM
from penstock.runtime.gpus import find_gpus
from penstock.runtime.machine import machine_facts

if TYPE_CHECKING:
    from penstock.bench.kernels import Figures

Format = TypeVar("Format", bound=str)
_ENGINE_HEADINGS = ("batch", "prefill tokens/s", "decode tokens/s", "ms a token")


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
    results: list[EngineFigures] = []

    def show(*cells: str) -> None:
        line = "  ".join(cell.rjust(len(heading)) for cell, heading in zip(cells, _ENGINE_HEADINGS, strict=True))
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    with console.status("measuring"):
        for figures in measure_engine(llm, batch_sizes, input_len, output_len, llm.vocab_size, repeat):
            if llm.load.preemptions:
                raise ConfigurationError(
                    f"The KV pool is too small for {figures.batch_size} prompts of {input_len} + {output_len} tokens: "
                    "some were preempted, so the figures would say nothing; raise --kv-cache-memory, or lower "
                    "--batch-size."
                )
            if not results:
                title = f"{engine['model']}: {input_len} tokens in, 1 + {output_len} out, median of {repeat}"
                console.print(title, highlight=False, markup=False, soft_wrap=True)
                show(*_ENGINE_HEADINGS)
            results.append(figures)
            show(
                str(figures.batch_size),
                f"{figures.prefill_tokens_per_second:,.1f}",
                as_text(figures.decode_tokens_per_second, ",.1f"),
                as_text(figures.milliseconds_per_token, ".3f"),
            )
    if json_file is not None:
        json_file.write_bytes(json_bytes({"results": results}))


def run_bench_kernels(
    operations: list[str] | None,
    formats: str,
    rows: list[int],
    threads: int | None,
    json_file: Path | None,
    device: str = "cpu",
) -> None:
    """Measure the kernels of a device, show their figures beside its ceilings; no `operations` are all.

    Raises ConfigurationError where there are no kernels for it, or no such operation, format or device, and
    InsufficientMemory where a GPU has too little.
    """
    from penstock.bench.kernels import operation_names
    from penstock.kernels.processor import this_processor

    notes: list[str] = []
    # A benchmark on the processor need not wait for a driver.
    facts = GpuFacts() if device == "cpu" else find_gpus()
    gpu = resolve_device(device, facts, lambda _setting, value, why: notes.append(f"{value}: {why}"))
    if gpu is None and (obstacle := this_processor().obstacle) is not None:
        raise ConfigurationError(f"There is nothing to measure: {obstacle}.")
    names = operation_names()
    for name in operations or ():
        if name not in names:
            raise ConfigurationError(f"--operation {name!r} is none of {', '.join(names)}.")
    if json_file is not None:
        check_writable(json_file)
    asked = {name.strip() for name in formats.split(",")}
    console = Console()
    if device != "cpu":
        console.print(f"{notes[0]}.", highlight=False)
    with console.status("measuring the machine"):
        kernels = _cpu_kernels(asked, threads) if gpu is None else _gpu_kernels(gpu, asked, threads)
    console.print(kernels.reached, highlight=False)
    console.print("Of the ceiling: the larger share, of memory or of arithmetic; above 100% is from caches.")
    results: list[Figures] = []
    with console.status("measuring"):
        for name, group in itertools.groupby(kernels.measure(operations or names, rows), lambda each: each.operation):
            results.extend(own := list(group))
            console.print(_kernel_table(name, own))
    if json_file is not None:
        value = {"device": kernels.device, "ceilings": kernels.ceilings, "operations": results}
        json_file.write_bytes(json_bytes(value))


@dataclass(frozen=True, slots=True)
class _Kernels:
    """What is measured.

    Attributes:
        device: its name.
        ceilings: what it reached with nothing else to do.
        reached: the same in words.
        measure: (operations, rows) → figures, as they come.
    """

    device: str
    ceilings: Ceilings
    reached: str
    measure: Callable[[Collection[str], Sequence[int]], "Iterator[Figures]"]


def _chosen(asked: set[str], there: "Sequence[Format]") -> "list[Format]":
    """Those of the formats that are there, in their order. Raises ConfigurationError for others."""
    chosen = [format for format in there if format in asked]
    if len(chosen) != len(asked):
        raise ConfigurationError(f"--format {','.join(sorted(asked))!r} is not a list of {', '.join(there)}.")
    return chosen


def _cpu_kernels(formats: set[str], threads: int | None) -> _Kernels:
    from penstock.bench.kernels import FORMATS, measure_operations
    from penstock.kernels.cpu.native import native
    from penstock.runtime.ceilings import measure_ceilings

    chosen = _chosen(formats, FORMATS)
    if threads is not None and threads < 1:
        raise ConfigurationError(f"--threads is {threads}; it must be at least 1.")
    native.set_threads(threads or machine_facts(api_beside=False).cores)
    ceilings = measure_ceilings()
    peaks = ", ".join(f"{name} {figure:,.0f} GOP/s" for name, figure in ceilings.arithmetic.items() if figure)
    return _Kernels(
        "cpu",
        ceilings,
        f"{native.threads()} threads, {native.instruction_set()}: memory read at {ceilings.read:.1f} GB/s; {peaks}",
        lambda names, rows: measure_operations(names, chosen, rows, ceilings),
    )


def _gpu_kernels(gpu: Gpu, formats: set[str], threads: int | None) -> _Kernels:
    if threads is not None:
        raise ConfigurationError(f"--threads is for kernels of the processor; leave it out with --device {gpu.device}.")
    # Triton takes a second to import.
    import torch

    from penstock.bench.device_kernels import FORMATS, longest_context, measure_on_device
    from penstock.kernels.cuda.place import place_on
    from penstock.runtime.gpu_ceilings import measure_device_ceilings

    chosen = _chosen(formats, FORMATS)
    if "fp8" in chosen and not gpu.multiplies_fp8:
        raise ConfigurationError(
            f"--format fp8 takes compute capability {dotted(FP8_CAPABILITY)} or more, and {gpu.device} has "
            f"{dotted(gpu.capability)}; leave it out."
        )
    place = place_on(torch.device(gpu.device), longest_context())
    place.use()

    def measure(names: Collection[str], rows: Sequence[int]) -> "Iterator[Figures]":
        try:
            yield from measure_on_device(names, chosen, rows, ceilings, place)
        except torch.OutOfMemoryError as error:
            raise _no_room(gpu) from error

    try:
        ceilings = measure_device_ceilings(place.device)
    except torch.OutOfMemoryError as error:
        raise _no_room(gpu) from error
    copied, product = ceilings.read, ceilings.arithmetic["bfloat16"]
    reached = (
        f"{gpu.name}: copies read and write {copied:,.1f} GB/s; a product of bfloat16 {product:,.0f} GOP/s. "
        "All shares of arithmetic refer to this product"
    )
    return _Kernels(gpu.name, ceilings, reached, measure)


def _no_room(gpu: Gpu) -> InsufficientMemory:
    free = gpu.free_memory / 2**30
    return InsufficientMemory(
        f"The measurement takes several GiB, and the memory of {gpu.device} had {free:.1f} GiB free; free more, or "
        "measure less with --operation and --format."
    )


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
