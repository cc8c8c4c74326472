"""How benchmarks report: the machine first, then tables in Markdown."""

import argparse
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from penstock.bench.load import metrics


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser that shows a script's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def machine() -> str:
    """CPU model, cores that this process may use, and the Python version."""
    return f"{cpu_model()}, {cores()} cores, Python {platform.python_version()}"


def cpu_model() -> str:
    """What the processor calls itself."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return model


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(header: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "–") -> str:
    """A table in Markdown; `empty` is shown where a value is None."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(empty if value is None else _cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def report(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], notes: str = "") -> None:
    """Print a title, the machine, a Markdown table and notes."""
    print(f"\n## {title}\n\n{machine()}\n\n{table(header, rows)}")
    if notes:
        print(f"\n{notes}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def median(values: Sequence[float]) -> float | None:
    """The median, None where nothing was measured."""
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """As `penstock bench serve` has it, None where there is none."""
    return metrics.percentile(sorted(values), share) if values else None
