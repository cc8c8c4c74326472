"""`penstock calibrate`, and plans on the machine that it measured."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from penstock.assembly.prepare import prepare
from penstock.cli import answering
from penstock.cli.calibrate import deployment_here
from penstock.cli.main import app
from penstock.configuration.options import EngineOptions
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment
from penstock.planning.own import read_machine
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
DEPLOYMENT = Deployment(shape_of(MODELS["Llama-3.1-8B"]), device_of("h100"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("here") / "kept" / "here.json"
    with pytest.MonkeyPatch.context() as patch:
        # Twice, and as few as are more than the most at a time.
        patch.setattr(answering, "_TURNS", 2)
        patch.setattr(answering, "_REQUESTS", 13)
        patch.setattr(answering, "_WAVES", 1)
        patch.setattr(answering, "_SHORT_REQUESTS", 13)
        result = CliRunner().invoke(app, ["calibrate", "haiku", "--seconds", "1", "--threads", "2", "--to", str(file)])
    assert result.exit_code == 0, result.output
    assert "GB/s" in result.stdout and "Written to" in result.stdout and str(file) in result.stdout.replace("\n", "")
    assert "A server and clients that share this machine" in result.stdout.replace("\n", " ")
    return file


def test_what_a_server_adds_is_in_the_file(measured: Path) -> None:
    machine = read_machine(measured.read_bytes(), "here.json")
    added = machine.answering
    assert added is not None
    alone, behind = machine.efficiency, machine.basis(DEPLOYMENT).efficiency
    assert behind.step_seconds == alone.step_seconds + added.step_seconds
    assert behind.chunk_seconds == alone.chunk_seconds + added.request_seconds
    assert machine.basis(DEPLOYMENT).apart == added.apart_seconds > 0
    assert behind.first_layer_seconds == added.first_seconds / DEPLOYMENT.shape.num_layers
    assert list(machine.varied) == sorted(machine.varied) and all(each > 0 for each in machine.varied)


def test_plans_and_simulations_stand_on_it(measured: Path) -> None:
    plan = CliRunner().invoke(app, ["plan", "haiku", "--on", str(measured), "--json", "-"])
    assert plan.exit_code == 0, plan.output
    found = json.loads(plan.stdout)
    assert "steps of haiku (plain) on this machine" in found["estimate"]["tpot_ms"]["basis"]
    assert found["estimate"]["tpot_ms"]["value"] > 0
    traffic = ["--rate", "1", "--requests", "5", "--input-len", "32", "--output-len", "8"]
    played = CliRunner().invoke(app, ["simulate", "haiku", "--on", str(measured), *traffic])
    assert played.exit_code == 0 and "5 requests in" in played.stdout


@pytest.mark.parametrize(
    ("quantization", "quantize_head", "bits"),
    [("none", None, (16, 16)), ("int8", None, (8, 8)), ("int4", None, (4 + 20 / 128, 4 + 20 / 128))]
    + [("int4", "int8", (4 + 20 / 128, 8))],
)
def test_head_and_weights_are_planned_as_they_are_served(
    quantization: str, quantize_head: str | None, bits: tuple[float, float]
) -> None:
    given = EngineOptions.of(model="haiku", quantization=quantization, quantize_head=quantize_head)
    found = deployment_here(prepare(given, api_beside=True), device_of("h100"), "auto")
    assert (found.weights.bits, found.head.bits) == bits


def test_ranks_are_measured_beside_one_process(measured: Path, tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    file.write_bytes(measured.read_bytes())
    options = ["haiku", "--seconds", "1", "--threads", "2", "--to", str(file)]
    result = CliRunner().invoke(app, ["calibrate", *options, "--tensor-parallel-size", "2"])
    assert result.exit_code == 0, result.output
    assert "2 ranks compute for" in result.stdout and "times as long as threads" in result.stdout.replace("\n", " ")
    before, after = (read_machine(each.read_bytes(), each.name) for each in (measured, file))
    (costs,) = after.ranks
    assert costs.kind == "parts" and "steps of these 2 ranks on this machine" in costs.said
    assert msgspec.structs.replace(after, ranks=()) == before
    plan = ["plan", "haiku", "--on", str(file), "--tensor-parallel-size", "2", "--json", "-"]
    found = json.loads(CliRunner().invoke(app, plan).stdout)
    assert f"of ranks, on {costs.said}" in found["estimate"]["tpot_ms"]["basis"]


@pytest.mark.parametrize(
    "options, told",
    [
        (["--to", "missing.json"], "--tensor-parallel-size 2 is measured beside one process: there is no missing.json"),
        (["--quantization", "int8"], "has steps of haiku (plain) in one process, and ranks are measured beside these"),
        (["--machines", "2", "--pipeline-parallel-size", "2"], "Processes of one machine are calibrated"),
    ],
)
def test_what_ranks_cannot_be_measured_beside_is_said(measured: Path, options: list[str], told: str) -> None:
    arguments = ["calibrate", "haiku", "--to", str(measured), "--tensor-parallel-size", "2", *options]
    assert told in str(CliRunner().invoke(app, arguments).exception)


def test_a_machine_that_was_not_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    error = str(CliRunner().invoke(app, ["plan", "haiku", "--on", "this"]).exception)
    assert "`penstock calibrate MODEL` measures this machine" in error
    other = tmp_path / "other.json"
    other.write_text("[]")
    assert "is not what `penstock calibrate` writes" in str(
        CliRunner().invoke(app, ["plan", "haiku", "--on", str(other)]).exception
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--seconds", "0"), "give more than 0"),
        (("--speculative", "ngram"), "without drafts"),
        (("--device", "cuda"), "Processors alone"),
        (("--kv-policy", "window:64"), "leave --kv-policy out"),
    ],
)
def test_what_is_not_measured_is_said(options: tuple[str, ...], told: str) -> None:
    assert told in str(CliRunner().invoke(app, ["calibrate", "haiku", *options]).exception)
