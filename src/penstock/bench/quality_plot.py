"""A plot of what weights cost in quality against what they take."""

from collections.abc import Sequence
from pathlib import Path

from penstock.bench.drawing import new_figure, write_figure
from penstock.quantization.quality import Estimate


def draw_quality(candidates: Sequence[tuple[str, int, Estimate]], folder: Path) -> Path:
    """Write (name, bytes, KL) of each candidate as an SVG file, and return it."""
    figure, axes = new_figure(size=(8, 5))
    for name, size, kl in candidates:
        axes.errorbar(size / 2**20, kl.value, yerr=kl.margin, marker="o", capsize=3, linestyle="none")
        axes.annotate(name, (size / 2**20, kl.value), xytext=(6, 4), textcoords="offset points", fontsize="small")
    axes.set(xlabel="weights, MiB", ylabel="KL from the base, nats", xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    return write_figure(figure, folder / "quality.svg")
