"""Curves of measurements: which values are drawn, and at which shares."""

from array import array
from pathlib import Path

import pytest

from penstock.bench.load.arrivals import Closed, Open, Replay
from penstock.bench.load.metrics import summarize
from penstock.bench.load.outcome import End, Outcome
from penstock.bench.load.plan import load_of
from penstock.bench.load.plots import _cumulative, draw_plots
from penstock.bench.load.run import Run
from penstock.bench.load.session import Stage


def test_shares_are_of_all_values_however_often_each_was_measured() -> None:
    assert _cumulative([(1.0, 1), (2.0, 1), (3.0, 2)]) == ([1.0, 2.0, 3.0], [0.25, 0.5, 1.0])
    assert _cumulative([(5.0, 7)]) == ([5.0], [1.0])
    # No more points than can be seen; the first and the last are among them.
    values, shares = _cumulative([(float(value), 1) for value in range(100_000)])
    assert len(values) == 1001 and (values[0], values[-1], shares[-1]) == (0.0, 99_999.0, 1.0)
    assert shares[0] == 1e-5 and all(
        share == (value + 1) / 100_000 for value, share in zip(values, shares, strict=True)
    )


def test_a_trace_that_is_replayed_faster_is_more_load() -> None:
    assert load_of(Replay(0.5)) == 2.0 and load_of(Replay(2.0)) == 0.5
    assert (load_of(Open(3.0)), load_of(Closed(4))) == (3.0, 4.0)


def stage(scale: float) -> Stage:
    outcomes = [
        Outcome(
            number=number,
            end=End.OK,
            scheduled=float(number),
            started=float(number),
            sent=float(number),
            first=number + 0.1,
            last=number + 0.4,
            ended=number + 0.4,
            status=200,
            asked=4,
            input_tokens=8,
            output_tokens=4,
            chunks=4,
            longest_gap=0.1,
        )
        for number in range(5)
    ]
    run = Run(Replay(scale), outcomes, array("d", [0.1]), 5.0, 0.0, gap_counts=array("q", [15]))
    return Stage(run, summarize(run, None))


def test_plots_of_a_trace_say_what_its_load_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from penstock.configuration.slo import parse_slo

    draw_plots([stage(1.0), stage(0.5)], parse_slo("ttft=1s"), tmp_path)
    assert "times as fast as the trace" in (tmp_path / "goodput.svg").read_text()
    assert "times × 0.5" in (tmp_path / "latencies.svg").read_text()
