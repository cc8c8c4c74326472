"""Drawing with matplotlib, which nothing else needs."""

import importlib.util
from pathlib import Path
from typing import Any

from penstock.core.errors import ConfigurationError


def check_plots(folder: Path) -> None:
    """Raise ConfigurationError where there could be no plots after a long measurement."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError("--plots needs matplotlib, which is not installed: pip install 'penstock[bench]'.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--plots {folder} is no folder that can be made: {error.strerror}.") from None


def new_figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7, 4.2)) -> tuple[Any, Any]:
    """A figure and its axes."""
    # Figures of their own: pyplot would keep them, and look for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def write_figure(figure: Any, path: Path) -> Path:
    """Write it as an SVG file, the same bytes for the same figure, and return where."""
    import matplotlib

    # Text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path
