"""Plots of a measurement."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from penstock.bench.drawing import new_figure, write_figure
from penstock.bench.load.arrivals import Closed, Replay
from penstock.bench.load.metrics import Distribution, Summary, figure_values, in_flight
from penstock.bench.load.outcome import End
from penstock.bench.load.plan import describe, load_of
from penstock.bench.load.session import Stage
from penstock.configuration.slo import Slo

_POINTS = 1000
_PANELS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end to end",
}


def draw_plots(stages: Sequence[Stage], slo: Slo | None, folder: Path) -> list[Path]:
    """Write the plots as SVG files, and return them."""
    drawn = {"latencies": _latencies(stages), "in-flight": _timeline(stages)}
    summaries = [stage.summary for stage in stages]
    if len(summaries) > 1:
        drawn["throughput-latency"] = _throughput(summaries)
        if slo is not None:
            drawn["goodput"] = _goodput(summaries, str(slo))
    return [write_figure(figure, folder / f"{name}.svg") for name, figure in drawn.items()]


def _latencies(stages: Sequence[Stage]) -> Any:
    """Cumulative distributions of each latency, a line for each stage."""
    figure, panels = new_figure(2, 2, (10, 7))
    for axes, (name, title) in zip(panels.flat, _PANELS.items(), strict=True):
        for stage in stages:
            served = [outcome for outcome in stage.run.outcomes if outcome.end is End.OK]
            counted = _gaps(stage) if name == "itl" else [(value, 1) for value in figure_values(served, name)]
            if counted:
                label = describe(stage.summary.arrivals)
                values, shares = _cumulative(sorted(counted))
                axes.step([1000 * value for value in values], shares, where="post", label=label)
        axes.set(title=title, xlabel="ms", ylabel="share of all", ylim=(0, 1))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
    return figure


def _gaps(stage: Stage) -> list[tuple[float, int]]:
    """Each gap between tokens, and how often it was measured."""
    gaps, counts = stage.run.gaps, stage.run.gap_counts
    return [(gap, 1) for gap in gaps] if counts is None else list(zip(gaps, counts, strict=True))


def _cumulative(counted: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Values in ascending order, with the share of all that are no larger."""
    ends = list(accumulate(count for _, count in counted))
    # More points than can be seen would only make the file larger.
    places = sorted({bisect_left(ends, 1 + n * (ends[-1] - 1) / _POINTS) for n in range(_POINTS + 1)})
    return [counted[place][0] for place in places], [ends[place] / ends[-1] for place in places]


def _timeline(stages: Sequence[Stage]) -> Any:
    """Requests in flight over time, a line for each stage."""
    figure, axes = new_figure()
    for stage in stages:
        changes = in_flight(stage.run.outcomes)
        # The last one is where nothing is in flight any more.
        changes = changes[:: max(1, len(changes) // (2 * _POINTS))] + changes[-1:]
        axes.step(
            [time for time, _ in changes], [n for _, n in changes], where="post", label=describe(stage.summary.arrivals)
        )
    axes.set(xlabel="seconds", ylabel="requests in flight", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _throughput(summaries: Sequence[Summary]) -> Any:
    """Latency over throughput: where the curve turns upwards, the server is full."""
    figure, panels = new_figure(1, 2, (10, 4.2))
    ordered = sorted(summaries, key=lambda summary: load_of(summary.arrivals))
    for axes, name in zip(panels, ("ttft", "tpot"), strict=True):
        for share in ("median", "p99"):
            points = [(s.output_token_rate, getattr(s, name)) for s in ordered]
            known = [(rate, latency) for rate, latency in points if rate is not None and latency is not None]
            heights = [1000 * _share(latency, share) for _, latency in known]
            axes.plot([rate for rate, _ in known], heights, marker="o", label=share)
        axes.set(title=_PANELS[name], xlabel="output tokens a second", ylabel="ms", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def _share(latency: Distribution, share: str) -> float:
    return float(getattr(latency, share))


def _goodput(summaries: Sequence[Summary], slo: str) -> Any:
    """Requests within the service levels, and all that succeeded, over the load."""
    figure, axes = new_figure()
    ordered = sorted(summaries, key=lambda summary: load_of(summary.arrivals))
    loads = [load_of(summary.arrivals) for summary in ordered]
    for name, label in (("request_rate", "succeeded"), ("goodput", f"within {slo}")):
        axes.plot(loads, [getattr(summary, name) or 0.0 for summary in ordered], marker="o", label=label)
    closed = isinstance(ordered[0].arrivals, Closed)
    replayed = isinstance(ordered[0].arrivals, Replay)
    came = "times as fast as the trace" if replayed else "rate that comes, a second"
    axes.set(xlabel="requests at a time" if closed else came, ylabel="requests a second")
    axes.set_ylim(0, None)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure
