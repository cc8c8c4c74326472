"""The kernel benchmark measures what it says, on shapes that take no time."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from penstock.bench import counts, kernels
from penstock.cli import bench
from penstock.core.ceilings import Ceilings
from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV
from penstock.kernels.cases import CASES, Case, llama
from penstock.kernels.cases.attention import GROUPED
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.places import RopeSpec, WeightRef
from penstock.kernels.signature import (
    COLLECTIVE,
    OPERATIONS,
    Attention,
    Embedding,
    Experts,
    GatedActivation,
    HeadLayout,
    HeadLinear,
    Linear,
    Rotary,
    SelectRows,
    SourceAttention,
    WriteKV,
)

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

WEIGHT = WeightRef("weight")
LINEAR = Case("64 × 256", Linear(WEIGHT), (256,), ((1, 1),), {"weight": (64, 256)}, use="bench")
ATTENTION = Case(
    "decodes and a chunk", Attention(GROUPED, 0, 0.4), (GROUPED.fused_width,), ((1, 10), (3, 20)), kv=LayerKV(2, 8)
)
CEILINGS = Ceilings(10.0, {"int8": 100.0, "bfloat16": 0.0, "float32": 50.0})


def _small() -> tuple[Case, ...]:
    """The first of the tests' own cases of each operation, and a projection with its gate."""
    firsts = {case.op: case for case in reversed(CASES) if case.use == "tests" and case.operation.op != "linear"}
    # Rows of whole blocks.
    firsts["embedding"] = dataclasses.replace(firsts["embedding"], weights={"weight": (11, 256)})
    experts = Experts(WeightRef("gate_up"), WeightRef("down"), 2, "silu")
    weights = {"gate_up": (2 * 512, 256), "down": (2 * 256, 256)}
    firsts["experts"] = Case("two experts", experts, (256, 2), weights=weights)
    firsts["head_linear"] = Case("heads", HeadLinear(WEIGHT, 2), (512,), weights={"weight": (128, 256)})
    return (LINEAR, dataclasses.replace(LINEAR, gate="silu"), *firsts.values())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_SECONDS", 0.0)
    monkeypatch.setattr(kernels, "_ROTATED_BYTES", 1 << 15)
    monkeypatch.setattr(kernels, "MEASURED", _small())
    monkeypatch.setattr(llama, "VOCABULARY", 300)


ATTENTIONS = ("attention", "source_attention", "row_attention")
MULTIPLY = ("linear", "gated_linear", *ATTENTIONS, "route", "experts", "head_linear")


def test_every_operation_is_measured_on_a_models_shape() -> None:
    assert {type(case.operation) for case in CASES if case.use != "tests"} == set(OPERATIONS) - set(COLLECTIVE)
    assert any(case.gate for case in CASES)
    assert set(kernels.operation_names()) == {
        operation.op for operation in OPERATIONS if operation not in COLLECTIVE
    } | {"gated_linear", "sampling"}


def test_figures_fit_together() -> None:
    found = list(kernels.measure_operations(kernels.operation_names(), kernels.FORMATS, [1, 5], CEILINGS))
    assert {figures.operation for figures in found} == set(kernels.operation_names())
    for figures in found:
        assert figures.microseconds > 0 and figures.gigabytes > 0
        assert figures.of_ceiling >= figures.gigabytes / CEILINGS.read
        assert (figures.gigaoperations > 0) == (figures.operation in MULTIPLY)
    linear = [figures for figures in found if figures.operation == "linear"]
    assert len(linear) == len(kernels.FORMATS) * 2
    for figures in linear:
        nanoseconds, values = figures.microseconds * 1e3, 4 * figures.rows * (64 + 256)
        size = native.packed_bytes(figures.format, 64, 256, 32 if "_float16" in figures.format else 0)
        assert figures.gigabytes * nanoseconds == pytest.approx(size + values)
        assert figures.gigaoperations * nanoseconds == pytest.approx(2 * figures.rows * 64 * 256)


def test_work_is_counted() -> None:
    assert counts.arithmetic(kernels.with_rows(LINEAR, 3)) == 2 * 3 * 64 * 256
    assert counts.arithmetic(ATTENTION) == 4 * 48 * (10 + 18 + 19 + 20)
    windowed = dataclasses.replace(ATTENTION, operation=Attention(GROUPED, 0, 0.4, window=5))
    assert counts.arithmetic(windowed) == 4 * 48 * (4 * 5)
    assert counts.kv_bytes(ATTENTION, 2) == 2 * (2 * 8) * 2 * (10 + 20)
    assert counts.kv_bytes(windowed, 2) == 2 * (2 * 8) * 2 * (5 + 7)
    assert counts.activation_bytes(ATTENTION) == 4 * 4 * (48 + 48), "queries in, as much out"
    heads = HeadLayout(3, 3, 16)
    rows, sources = ((1, 9), (2, 2)), (5, 7)
    asking = Case("two rows", SourceAttention(heads, 0, 0.4), (48,), rows, kv=LayerKV(3, 16), sources=sources)
    assert counts.arithmetic(asking) == 4 * 48 * (5 + 2 * 7)
    assert counts.kv_bytes(asking, 2) == 2 * 48 * 2 * (5 + 7)
    assert counts.activation_bytes(asking) == 4 * 3 * (48 + 48)
    experts = next(case for case in _small() if case.op == "experts")
    assert counts.arithmetic(kernels.with_rows(experts, 3)) == 2 * 3 * (512 * 256 + 256 * 256)
    assert [counts.weight_bytes(kernels.with_rows(experts, count), 1000) for count in (1, 2)] == [500, 750]
    assert counts.arithmetic(Case("gates", GatedActivation("silu"), (16,))) == 0


@pytest.mark.parametrize(
    "case, values, weights, kv",
    [
        (LINEAR, 4 * (256 + 64), 1000, 0),
        (dataclasses.replace(LINEAR, gate="silu"), 4 * (256 + 32), 1000, 0),
        (Case("", Embedding(WEIGHT), (), ((1, 1),) * 2, {"weight": (10, 40)}), 4 * 2 * 40, 2 * 100, 0),
        (Case("", GatedActivation("silu"), (16,), ((1, 1),) * 3), 4 * 3 * (16 + 8), 0, 0),
        (Case("", Rotary(GROUPED, RopeSpec(8, 1e4)), (80,), ((1, 1),)), 4 * 2 * (48 + 16), 4 * 2 * 8, 0),
        (Case("", WriteKV(GROUPED, 0), (80,), ((1, 1),) * 3), 4 * 3 * 32, 0, 2 * 3 * 32),
        (Case("", SelectRows(), (33,), ((5, 5),), wanted=(0, 4)), 4 * 2 * 2 * 33, 0, 0),
    ],
    ids=lambda value: value.op if isinstance(value, Case) else "",
)
def test_bytes_are_counted(case: Case, values: int, weights: int, kv: int) -> None:
    assert counts.activation_bytes(case) == values
    assert counts.weight_bytes(case, 1000) == weights
    assert counts.kv_bytes(case, 2) == kv


def test_medians_are_of_the_calls() -> None:
    ticks = itertools.count()
    assert kernels.median_seconds(lambda: next(ticks), 0.0) >= 0
    assert next(ticks) == 4, "one call to warm up and three that count"


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = native.threads()
    bench.run_bench_kernels(["linear", "scale"], "int4,bfloat16", [1, 2], 2, tmp_path / "figures.json")
    native.set_threads(before)
    shown = capsys.readouterr().out
    assert "2 threads" in shown and "64 × 256" in shown and "scale" in shown and "soft_cap" not in shown
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["ceilings"]["read"] > 0
    assert [(entry["operation"], entry["format"], entry["rows"]) for entry in written["operations"]] == [
        ("linear", "int4", 1), ("linear", "int4", 2), ("linear", "bfloat16", 1), ("linear", "bfloat16", 2),
        ("scale", "", 1), ("scale", "", 2),
    ]  # fmt: skip


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="int5"):
        bench.run_bench_kernels(None, "int5", [1], None, None)
    with pytest.raises(ConfigurationError, match="'convolution' is none of linear, .*attention, .*sampling"):
        bench.run_bench_kernels(["attention", "convolution"], "int4", [1], None, None)
