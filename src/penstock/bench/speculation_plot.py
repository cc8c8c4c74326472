"""A plot of what drafts gain against how often they are right, with the theory beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.drawing import new_figure, write_figure
from penstock.bench.speculation import Setting, SpeculationFigures, theory

_POINTS = 100


def draw_speculation(results: Sequence[SpeculationFigures], folder: Path) -> Path:
    """Write the plot as an SVG file, and return it."""
    figure, axes = new_figure(size=(8, 5.5))
    settings: dict[Setting, list[SpeculationFigures]] = {}
    for result in results:
        settings.setdefault(result.setting, []).append(result)
    for number, (setting, measured) in enumerate(settings.items()):
        _draw(axes, setting, measured, f"C{number % 10}")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="probability of a draft to be right", ylabel="speed-up", xlim=(0, 1), ylim=(0, None))
    axes.grid(alpha=0.3)
    if settings:
        axes.legend(fontsize="small", title="dots: measured, at the batch size beside them;\nlines: by theory")
    return write_figure(figure, folder / "speculation.svg")


def _draw(axes: Any, setting: Setting, measured: Sequence[SpeculationFigures], color: str) -> None:
    """Of one setting a dot for each measurement, and what theory says of its mean depth and cost."""
    depth = sum(each.drafted for each in measured) / len(measured)
    cost = sum(each.cost for each in measured) / len(measured)
    rates = [point / _POINTS for point in range(_POINTS + 1)]
    axes.plot(rates, [theory(rate, depth, cost)[1] for rate in rates], color=color, alpha=0.5)
    axes.scatter(
        [each.acceptance for each in measured],
        [each.speedup for each in measured],
        color=color,
        label=f"{setting.proposer}, depth {setting} (drafted {depth:.1f}, each {cost:.2f} steps)",
    )
    for each in measured:
        where = (each.acceptance, each.speedup)
        axes.annotate(str(each.batch_size), where, xytext=(4, 4), textcoords="offset points", fontsize="x-small")
