"""Numbers of processes that options leave to the plan, when a server is prepared."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.assembly.layout_choice import with_layout
from penstock.assembly.prepare import Prepared, prepare
from penstock.cli.calibrate import deployment_here
from penstock.configuration.facts import MachineFacts
from penstock.configuration.options import EngineOptions, Size
from penstock.core.config import Reason
from penstock.core.devices import Gpu, GpuFacts
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.checkpoint import open_checkpoint
from penstock.planning.own import OwnMachine
from penstock.planning.processors import PROCESSOR
from penstock.planning.rank_costs import PRIORS
from penstock.planning.ranks import ranks_of
from support.cores import CORES
from support.translator import write_translator

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
OPEN = {"tensor_parallel_size": "auto", "pipeline_parallel_size": "auto", "threads": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a calibration of this machine would be."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    return tmp_path


def prepared(model: str = "haiku", **options: Any) -> tuple[Prepared, Reason]:
    """With what is said of the choice."""
    found = prepare(EngineOptions.of(model, **{**OPEN, **options}), api_beside=True)
    (reason,) = (each for each in found.reasons if each.setting == "parallel sizes")
    assert reason in found.found, "a start says it"
    return found, reason


def test_one_machine_computes_in_one_process() -> None:
    found, reason = prepared()
    assert found.config.ranks is None and reason.value == "tensor 1, expert 1, pipeline 1, context 1"
    assert "2 cores of a Xeon 8480+, since this machine was not calibrated" in reason.why


def test_each_of_several_machines_has_a_stage() -> None:
    found, reason = prepared(machines=2)
    assert found.config.ranks is not None and found.config.ranks.num_stages == 2
    assert "each of 2 machines has a stage" in reason.why


def test_a_calibration_is_what_ways_are_compared_by(cache: Path) -> None:
    whole = deployment_here(prepare(EngineOptions.of("haiku"), api_beside=True), CORES, "auto")
    two = ranks_of(msgspec.structs.replace(whole, split=2))
    faster = msgspec.structs.replace(PRIORS["parts"], waits=-0.4, said="steps of ranks", of=two)
    own = OwnMachine(
        CORES, "2026-11-26", PROCESSOR, (0.9, 1.1), "it", ("plain", "plain"), (), ranks=(faster,), threads=2
    )
    (cache / "hardware.json").write_bytes(msgspec.json.encode(own))
    found, reason = prepared()
    assert found.config.ranks is not None and found.config.ranks.split == 2
    assert "TP 2 yields the most" in reason.why and "steps of it (plain) on this machine" in reason.why
    # With another number of threads, nothing was measured.
    found, reason = prepared(threads=4)
    assert found.config.ranks is None and "a prior: " in reason.why and "steps of ranks" not in reason.why


def test_what_ranks_do_not_go_together_with_leaves_one_process(tmp_path: Path) -> None:
    found, reason = prepared(kv_disk=str(tmp_path / "blocks"))
    assert found.config.ranks is None and reason.why.startswith("auto: with --kv-disk there are no others")


def test_a_model_that_plans_do_not_know_has_one_process(tmp_path: Path) -> None:
    write_translator(tmp_path)
    found, reason = prepared(model=str(tmp_path))
    assert found.config.ranks is None and "plans do not know this model: The model has an encoder" in reason.why


@pytest.mark.parametrize("gigabytes, split", [(40, 1), (16, 2), (8, 4)])
def test_as_few_gpus_as_hold_the_model(tmp_path: Path, gigabytes: int, split: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Llama-3.1-8B"]))
    gpus = tuple(Gpu(place, "some GPU", (9, 0), gigabytes * 10**9, gigabytes * 10**9) for place in range(4))
    machine = MachineFacts(available_memory=10**11, cores=8, gpus=GpuFacts(gpus))
    options = EngineOptions.of(str(tmp_path), tensor_parallel_size="auto", device="cuda")
    found, (reason,) = with_layout(options, tmp_path, open_checkpoint(tmp_path, weights=False), machine, gpus[0])
    assert found.device.tensor_parallel_size == split and f"{split} of 4 GPUs hold" in reason.why


def test_gpus_hold_numbers_as_they_compute_in(tmp_path: Path) -> None:
    """Those of twice the bytes, and a GGUF file's blocks, which are numbers there."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Llama-3.1-8B"]))
    checkpoint = open_checkpoint(tmp_path, weights=False)
    gpus = tuple(Gpu(place, "some GPU", (9, 0), 30 * 10**9, 30 * 10**9) for place in range(4))
    machine = MachineFacts(available_memory=10**11, cores=8, gpus=GpuFacts(gpus))

    def chosen(path: Path, **options: str) -> Size:
        asked = EngineOptions.of(str(path), tensor_parallel_size="auto", device="cuda", **options)
        return with_layout(asked, path, checkpoint, machine, gpus[0])[0].device.tensor_parallel_size

    file = tmp_path / "model-Q4_K.gguf"
    file.write_bytes(b"GGUF")
    assert [chosen(path, dtype="float32") for path in (tmp_path, file)] == [2, 2]
    assert [chosen(path) for path in (tmp_path, file)] == [1, 1]
    gpus = tuple(msgspec.structs.replace(gpu, total_memory=16 * 10**9, free_memory=16 * 10**9) for gpu in gpus)
    machine = msgspec.structs.replace(machine, gpus=GpuFacts(gpus))
    assert [chosen(path) for path in (tmp_path, file)] == [2, 2]
    assert chosen(file, quantization="int4") == 1


def test_nothing_is_said_where_nothing_is_open() -> None:
    found = prepare(EngineOptions.of("haiku"), api_beside=True)
    assert OBSTACLE is None and not any(each.setting == "parallel sizes" for each in found.reasons)
