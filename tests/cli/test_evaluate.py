"""`penstock evaluate` on the bundled models and on small ones."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from penstock.cli import serving_figures
from penstock.kernels.cpu.native import OBSTACLE
from support import checkpoints
from support.quantized import LAYOUTS, quantize

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

Run = Callable[..., CompletedProcess[str]]


def figures(file: Path) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(file.read_text())["candidates"]}


# Workers share the machine: a second thread of small products would mostly wait, in a busy loop.
ONE = ("--threads", "1")


def test_rounding_costs_the_bundled_model_little(penstock_here: Run, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    asked = ("haiku", "haiku@none", "haiku@int8", "haiku@int4", "--dtype", "float32", "--texts", "12", *ONE)
    plots = ("--plots", str(tmp_path / "plots"))
    done = penstock_here("evaluate", *asked, "--max-perplexity", "1.1", "--json", str(file), *plots)
    assert done.returncode == 0, done.stderr
    found = figures(file)
    same, int8, int4 = (found[f"haiku@{name}"]["quality"] for name in ("none", "int8", "int4"))
    assert same["kl"]["value"] < 1e-8 and same["same_top"]["value"] == 1.0
    assert int8["kl"]["value"] <= 0.002 and int8["clear_same_top"] >= 0.995
    assert int4["kl"]["value"] <= 0.05 and int4["clear_same_top"] >= 0.97
    assert (
        found["haiku@int4"]["weight_bytes"] < found["haiku@int8"]["weight_bytes"] < found["haiku@none"]["weight_bytes"]
    )
    assert "haiku@int4 passes" in done.stdout and (tmp_path / "plots" / "quality.svg").exists()


def test_a_rounded_model_is_served_beside_the_whole_one(
    penstock_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "figures.json"
    if not request.config.getoption("slow"):
        # Nobody relies on what is measured here.
        monkeypatch.setattr(serving_figures, "_REPEAT", 1)
        monkeypatch.setattr(serving_figures, "_INPUT_LEN", 32)
    asked = ("haiku", "haiku@int4", "--dtype", "float32", "--texts", "4", "--answers", "16", "--speed", *ONE)
    done = penstock_here("evaluate", *asked, "--json", str(file))
    assert done.returncode == 0, done.stderr
    whole, rounded = json.loads(file.read_text())["base_served"], figures(file)["haiku@int4"]["served"]
    for served in (whole, rounded):
        assert {task: len(right) for task, right in served["right"].items()} == {"5-7-5": 16, "JSON": 16, "sums": 16}
        assert sum(served["right"]["JSON"]) >= 14
        assert [each["batch_size"] for each in served["speed"]] == [1, 16]
        for each in served["speed"]:
            assert each["prefill_tokens_per_second"] > 0
            assert each["decode_tokens_per_second"] is None or each["decode_tokens_per_second"] > 0


def test_a_candidate_that_does_not_pass(penstock_here: Run) -> None:
    done = penstock_here(
        "evaluate", "haiku", "haiku@int4", "--texts", "4", "--max-kl", "0.0001", "--max-perplexity", "0.5", *ONE
    )
    assert done.returncode == 1
    assert "haiku@int4 does not pass. Its KL is" in done.stdout and "above --max-perplexity 0.5" in done.stdout


def test_a_text_and_a_quantized_checkpoint(penstock_here: Run, tmp_path: Path) -> None:
    plain = checkpoints.make("llama", tmp_path / "plain")
    folder = quantize(plain, *LAYOUTS["gptq 4"], tmp_path / "gptq")
    text = tmp_path / "text.txt"
    text.write_text("The rain fell on the roof of the old house. " * 40)
    file = tmp_path / "figures.json"
    done = penstock_here(
        "evaluate",
        str(plain),
        str(folder),
        "--text",
        str(text),
        "--context",
        "64",
        "--min-same-top",
        "0.8",
        "--json",
        str(file),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(file)[str(folder)]
    assert found["weights"] == "own" and 0 < found["quality"]["kl"]["value"] < 1e-3
    assert found["quality"]["texts"] > 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("haiku", "haiku", "--text", "nowhere.txt"), "--text nowhere.txt cannot be read"),
        (("haiku", "haiku", "--context", "100000"), "smaller --context"),
        (("haiku", "nowhere"), "nowhere"),
    ],
)
def test_what_is_refused(penstock_here: Run, arguments: tuple[str, ...], says: str) -> None:
    done = penstock_here("evaluate", *arguments, "--texts", "2", *ONE)
    assert done.returncode != 0 and says in done.stderr, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr


def test_models_of_other_vocabularies(penstock_here: Run, tmp_path: Path) -> None:
    other = checkpoints.make("llama", tmp_path / "other")
    done = penstock_here("evaluate", "haiku", str(other), "--texts", "2", *ONE)
    assert "one vocabulary" in done.stderr


def test_what_is_refused_before_anything_is_measured(penstock_here: Run) -> None:
    done = penstock_here("evaluate", "haiku", "haiku@int4", "--answers", "3", *ONE)
    assert done.returncode != 0 and "too few to tell a loss from chance" in done.stderr
    done = penstock_here("evaluate", "haiku", "haiku@kv=int3", "--texts", "1", *ONE)
    assert done.returncode != 0 and "--kv-cache-dtype int3 is not one of auto, int8, fp8, int4" in done.stderr
