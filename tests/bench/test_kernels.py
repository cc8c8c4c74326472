"""The kernel benchmark measures what it says, on shapes that take no time."""

import itertools
import json
from pathlib import Path

import pytest

from penstock.bench import kernels
from penstock.cli import bench
from penstock.core.errors import ConfigurationError
from penstock.kernels.cpu.native import OBSTACLE, native

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_SECONDS", 0.0)
    monkeypatch.setattr(kernels, "_ROTATED_BYTES", 1 << 18)
    monkeypatch.setattr(kernels, "_READ_BYTES", 4 << 20)
    monkeypatch.setattr(bench, "LINEAR_SHAPES", ((96, 64),))


def test_figures_fit_together() -> None:
    ceilings = kernels.measure_ceilings()
    assert ceilings.read > 0
    found = list(kernels.measure_linear(kernels.FORMATS, [(96, 64), (64, 256)], [1, 5], ceilings))
    assert len(found) == 4 * 2 * 2
    for figures in found:
        outputs, inputs, nanoseconds = figures.outputs, figures.inputs, figures.microseconds * 1e3
        assert figures.gigaoperations * nanoseconds == pytest.approx(2 * figures.rows * outputs * inputs)
        size = native.packed_bytes(figures.format, outputs, inputs, 32 if figures.format == "int4" else 0)
        assert figures.gigabytes * nanoseconds == pytest.approx(size)
        assert figures.of_ceiling >= figures.gigabytes / ceilings.read


def test_medians_are_of_the_calls() -> None:
    ticks = itertools.count()
    assert kernels.median_seconds(lambda: next(ticks), 0.0) >= 0
    assert next(ticks) == 6, "one call to warm up and five that count"


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = native.threads()
    bench.run_bench_kernels("int4,bfloat16", [1, 2], 2, tmp_path / "figures.json")
    native.set_threads(before)
    shown = capsys.readouterr().out
    assert "2 threads" in shown and "96 × 64" in shown
    written = json.loads((tmp_path / "figures.json").read_text())
    assert [(entry["format"], entry["rows"]) for entry in written["linear"]] == [
        ("int4", 1), ("int4", 2), ("bfloat16", 1), ("bfloat16", 2)
    ]  # fmt: skip


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="int5"):
        bench.run_bench_kernels("int5", [1], None, None)
