"""The kernel benchmark on a GPU, or interpreted, measures what it says, on shapes that take little time."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from penstock.bench import counts, kernels
from penstock.cli import bench
from penstock.core.ceilings import Ceilings
from penstock.core.devices import Gpu, GpuFacts
from penstock.core.errors import ConfigurationError
from penstock.core.sampling import SamplingParams
from penstock.kernels.cases import CASES, Case, llama
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import ENCODING, Attention, Experts, Linear, RmsNorm
from support.device import DEVICE, INTERPRETED

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.bench import device_kernels
from penstock.bench.device_single import captured, case_on_device
from penstock.kernels.cuda.place import place_on
from penstock.runtime.gpu_clock import seconds_of

pytestmark = pytest.mark.cuda

PLACE = place_on(DEVICE, 64)
ASKED = "cuda" if INTERPRETED else str(DEVICE)
LINEAR = Case("64 × 128", Linear(WeightRef("weight")), (128,), ((1, 1),), {"weight": (64, 128)}, use="bench")
CEILINGS = Ceilings(10.0, {"bfloat16": 100.0})
# Bytes of a weight, with a scale for each output of int8 and FP8, a scale and a zero for each 32 inputs of int4.
SIZES = {
    "int4": 64 * (64 + 4 * 3),
    "int8": 64 * (128 + 4),
    "fp8": 64 * (128 + 4),
    "bfloat16": 2 * 64 * 128,
    "float32": 4 * 64 * 128,
}


def _small() -> tuple[Case, ...]:
    """The smallest of the tests' own cases of each operation, and a projection with its gate."""
    smallest: dict[str, Case] = {}
    for case in CASES:
        before = smallest.get(case.op)
        size = max(context for _, context in case.rows) * case.tokens
        if (
            case.use == "tests"
            and case.op != "linear"
            and (before is None or size < max(context for _, context in before.rows) * before.tokens)
        ):
            smallest[case.op] = case
    # Rows of whole runs of int4.
    smallest["embedding"] = dataclasses.replace(smallest["embedding"], weights={"weight": (11, 128)})
    experts = Experts(WeightRef("gate_up"), WeightRef("down"), 2, "silu")
    smallest["experts"] = Case(
        "two experts", experts, (128, 2), ((1, 1),), {"gate_up": (2 * 128, 128), "down": (2 * 128, 64)}
    )
    return (LINEAR, dataclasses.replace(LINEAR, gate="silu"), *smallest.values())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MEASURED", _small())
    monkeypatch.setattr(device_kernels, "_SECONDS", 0.0)
    monkeypatch.setattr(device_kernels, "_STEPS", 1)
    monkeypatch.setattr(device_kernels, "_ROTATED_BYTES", 1 << 13)
    monkeypatch.setattr(llama, "VOCABULARY", 300)
    monkeypatch.setattr(device_kernels, "SAMPLING", {"top_p 0.9": SamplingParams(top_p=0.9, seed=1)})


def test_figures_fit_together() -> None:
    names = kernels.operation_names()
    place = place_on(DEVICE, device_kernels.longest_context())
    lacking = {operation.op for operation in ENCODING}
    measured = [name for name in names if name not in ("sampling", *lacking)]
    formats = [format for format in device_kernels.FORMATS if format != "fp8" or place.fp8]
    found = list(device_kernels.measure_on_device(measured, formats, [3], CEILINGS, place))
    found += device_kernels.measure_on_device(["sampling"], (), [1], CEILINGS, place)
    assert {figures.operation for figures in found} == set(names) - lacking
    for figures in found:
        assert figures.microseconds > 0 and figures.gigabytes > 0
        assert figures.of_ceiling >= figures.gigabytes / CEILINGS.read
        assert (figures.gigaoperations > 0) == (
            figures.operation in ("linear", "gated_linear", "attention", "route", "experts")
        )
    linear = [figures for figures in found if figures.operation == "linear"]
    assert [(each.format, each.rows) for each in linear] == [(each, 3) for each in SIZES if each in formats]
    for figures in linear:
        nanoseconds = figures.microseconds * 1e3
        values = (4 if figures.format == "float32" else 2) * figures.rows * (64 + 128)
        assert figures.gigabytes * nanoseconds == pytest.approx(SIZES[figures.format] + values)
        assert figures.gigaoperations * nanoseconds == pytest.approx(2 * figures.rows * 64 * 128)


def test_values_are_counted_in_their_own_type() -> None:
    norm = Case("", RmsNorm(WeightRef("weight"), 1e-5), (40,), ((1, 1),) * 3, {"weight": (40,)})
    assert counts.activation_bytes(norm, 2) == 2 * 3 * (40 + 40)
    assert counts.weight_bytes(norm, 0, 2) == 2 * 40


@pytest.mark.parametrize("op", ["linear", "attention"])
def test_what_is_captured_goes_on_computing(op: str) -> None:
    """Calls of a graph launch every step; where Triton is interpreted, the steps themselves do."""
    case = next(case for case in _small() if case.op == op)
    assert isinstance(case.operation, Linear | Attention)
    weight = torch.randn(64, 128, device=DEVICE)
    launches = captured(
        case_on_device(case, [{"weight": weight} if op == "linear" else {}], 2, PLACE, torch.float32), PLACE
    )
    times = seconds_of(launches, 3, PLACE.device)
    assert len(times) == 3 and all(seconds > 0 for seconds in times)


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run_bench_kernels(["linear", "scale"], "bfloat16,int8", [1, 2], None, tmp_path / "figures.json", ASKED)
    shown = " ".join(capsys.readouterr().out.split())
    assert ("Triton interprets" in shown) == INTERPRETED
    assert "copies read and write" in shown and "64 × 128" in shown and "soft_cap" not in shown
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["device"] and written["ceilings"]["read"] > 0
    assert [(entry["operation"], entry["format"], entry["rows"]) for entry in written["operations"]] == [
        ("linear", "int8", 1), ("linear", "int8", 2), ("linear", "bfloat16", 1), ("linear", "bfloat16", 2),
        ("scale", "", 1), ("scale", "", 2),
    ]  # fmt: skip


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'q4_k' is not a list of int4, int8, "):
        bench.run_bench_kernels(None, "q4_k", [1], None, None, ASKED)
    with pytest.raises(ConfigurationError, match=r"--threads is for kernels of the processor; .* --device cuda:"):
        bench.run_bench_kernels(None, "int4", [1], 2, None, ASKED)
    with pytest.raises(ConfigurationError, match="--device gpu is not one of auto, cpu, cuda, "):
        bench.run_bench_kernels(None, "int4", [1], None, None, "gpu")


def test_fp8_is_measured_where_there_are_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Gpu(0, "Made-up 86", (8, 6), 1 << 34, 1 << 34)
    monkeypatch.setattr(bench, "find_gpus", lambda: GpuFacts((old,)))
    with pytest.raises(ConfigurationError, match="--format fp8 takes compute capability 8.9 or more, .* has 8.6"):
        bench.run_bench_kernels(None, "fp8,int8", [1], None, None, "cuda")


def test_without_a_gpu_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigurationError, match="--device cuda is not (possible here|there)"):
        bench.run_bench_kernels(None, "int4", [1], None, None, "cuda")
