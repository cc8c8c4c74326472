"""Calibrations by points that a known machine has, and what is refused."""

import json
from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.planning import priors
from penstock.planning.calibration import MeasuredPoint, calibrated, prior_basis
from penstock.planning.estimates import Workload, estimate
from penstock.planning.fitting import coefficients, efficiency_of
from penstock.planning.formats import FORMATS
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
DEPLOYMENT = Deployment(shape_of(MODELS["Qwen3-32B"]), device_of("h100"), 2, FORMATS["fp8"])
# A machine that reaches less of its limits and costs more beside.
SLOWER = efficiency_of(
    {name: value * (2.0 if name.endswith("_seconds") else 0.7) for name, value in coefficients(priors.TYPICAL).items()}
)
RUNS = [(128, 128, 1), (1024, 256, 8), (8192, 512, 4), (512, 1024, 64), (2048, 128, 16), (256, 512, 128)]


def measured(noise: float = 0.0) -> list[MeasuredPoint]:
    found = []
    for number, (inputs, outputs, rows) in enumerate(RUNS):
        told = estimate(DEPLOYMENT, SLOWER, Workload(inputs, outputs, rows))
        factor = 1 + noise * (-1) ** number
        found.append(
            MeasuredPoint(inputs, outputs, rows, ttft_ms=told.ttft * 1e3 * factor, tpot_ms=told.tpot * 1e3 * factor)
        )
    return found


def test_estimates_become_what_was_measured() -> None:
    basis = calibrated(DEPLOYMENT, measured())
    for inputs, outputs, rows in [*RUNS, (4096, 256, 32), (64, 64, 2)]:
        true, prior, told = (
            estimate(DEPLOYMENT, efficiency, Workload(inputs, outputs, rows))
            for efficiency in (SLOWER, priors.TYPICAL, basis.efficiency)
        )
        assert told.tpot == pytest.approx(true.tpot, rel=0.06)
        assert prior.tpot < 0.85 * true.tpot
    assert basis.said.startswith("a calibration of 6 points")
    assert basis.tpot[0] < 1 < basis.tpot[1]


def test_noise_widens_the_interval() -> None:
    even, uneven = calibrated(DEPLOYMENT, measured()), calibrated(DEPLOYMENT, measured(noise=0.3))
    assert uneven.tpot[0] < even.tpot[0] < 1 < even.tpot[1] < uneven.tpot[1]
    # Nothing is ever told more narrowly than this.
    assert even.tpot[1] >= 1.1


def test_what_was_not_measured_has_the_wide_interval() -> None:
    points = [
        MeasuredPoint(each.input_len, each.output_len, each.concurrency, tpot_ms=each.tpot_ms) for each in measured()
    ]
    assert calibrated(DEPLOYMENT, points).ttft == prior_basis(DEPLOYMENT).ttft == priors.TTFT_INTERVAL


@pytest.mark.parametrize(
    ("point", "told"),
    [
        (MeasuredPoint(10, 10, 1), "Point 4 of the calibration is none"),
        (MeasuredPoint(0, 10, 1, tpot_ms=1.0), "Point 4"),
        (MeasuredPoint(10, 10, 0, tpot_ms=1.0), "Point 4"),
        (MeasuredPoint(10, 10, 1, tpot_ms=-1.0), "Point 4"),
        (MeasuredPoint(10, 10, 1, cached_len=10, tpot_ms=1.0), "Point 4"),
    ],
)
def test_a_point_that_is_none_is_named(point: MeasuredPoint, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        calibrated(DEPLOYMENT, [*measured()[:3], point])


def test_a_few_points_say_nothing() -> None:
    with pytest.raises(ConfigurationError, match="takes 4 points or more, and 3 are there"):
        calibrated(DEPLOYMENT, measured()[:3])
