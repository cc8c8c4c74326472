"""`penstock quantize`, from the command to a model that is served."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.assembly.scorer import load_scorer
from penstock.cli.quantize import Source, run_quantize
from penstock.configuration.options import EngineOptions
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.quantization.recipe import make_recipe
from support import checkpoints
from support.quantized import LAYOUTS, quantize

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("llama", tmp_path_factory.mktemp("model"), num_key_value_heads=2, head_dim=32)


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads(), None if OBSTACLE is not None else native.threads()
    yield
    torch.set_num_threads(before[0])
    if before[1] is not None:
        native.set_threads(before[1])


@pytest.mark.usefixtures("_threads_as_before")
def test_all_threads_that_are_asked_for_compute(model: Path, tmp_path: Path) -> None:
    def there() -> set[int]:
        return {torch.get_num_threads()} | (set() if OBSTACLE is not None else {native.threads()})

    load_scorer(EngineOptions.of(model=str(model), threads=3), 64)
    assert there() == {3}
    recipe = make_recipe(
        "rtn", "compressed-tensors", bits=4.0, group=32, symmetric=True, searched=True, damping=None, act_order=True
    )
    run_quantize(str(model), recipe, Source(None, None, None), tmp_path / "out", threads=2)
    assert there() == {2}


def test_a_checkpoint_is_written_and_compared(model: Path, penstock_here: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = tmp_path / "text.txt"
    text.write_text("The rain fell on the roof of the old house. " * 40)
    sizes = ("--bits", "8", "--group-size", "32", "--samples", "4", "--sample-len", "64")
    done = penstock_here("quantize", str(model), "--out", str(out), *sizes, "--calibration", str(text))
    assert done.returncode == 0, done.stderr
    assert "block 2: relative error of outputs: " in done.stdout and f"penstock evaluate {model} {out}" in done.stdout
    assert json.loads((out / "config.json").read_text())["quantization_config"]["quant_method"] == "compressed-tensors"
    done = penstock_here(
        "evaluate", str(model), str(out), "--text", str(text), "--context", "64", "--min-same-top", "0.8"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_who_reads_what_is_written_is_said(penstock_here: Run, tmp_path: Path) -> None:
    model = checkpoints.make("gpt2", tmp_path / "model", n_embd=64)
    done = penstock_here(
        "quantize", str(model), "--out", str(tmp_path / "out"), "--method", "rtn", "--group-size", "32"
    )
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("Matrices are written as [outputs, inputs]") and "transformers does not" in first


def test_a_mixture_is_written_and_compared(penstock_here: Run, tmp_path: Path) -> None:
    model = checkpoints.make("qwen3_moe", tmp_path / "model", num_key_value_heads=2, head_dim=32, mlp_only_layers=[])
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("The rain fell on the roof of the old house. " * 40)
    sizes = ("--bits", "8", "--group-size", "32", "--samples", "2", "--sample-len", "64", "--calibration", str(text))
    done = penstock_here("quantize", str(model), "--out", str(out), *sizes, "--format", "gptq")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "2 texts: " in lines[0] and lines[0].endswith("; going on with more")
    assert "8 texts: " in lines[3] and " of 32 experts get too few rows, the least " in lines[3]
    assert lines[3].endswith("; there are no more")
    rare = [line for line in lines if " is rounded to the nearest: they got fewer than 64 rows, the least " in line]
    assert rare and all(line.startswith("block ") and ": experts.gate_up_proj of " in line for line in rare)
    assert " projections of experts are rounded to the nearest, since the texts had too few rows" in done.stdout
    bounds = ("--min-same-top", "0.5", "--max-kl", "1", "--max-perplexity", "2")
    done = penstock_here("evaluate", str(model), str(out), "--text", str(text), "--context", "64", *bounds)
    assert done.returncode == 0, done.stdout + done.stderr


def test_texts_end_at_an_expert_that_a_router_never_chooses(penstock_here: Run, tmp_path: Path) -> None:
    model = checkpoints.make("minimax_m2", tmp_path / "model", num_key_value_heads=2, head_dim=32)
    tensors = load_file(model / "model.safetensors")
    for name in (each for each in tensors if each.endswith("e_score_correction_bias")):
        tensors[name] = torch.tensor([0.0] * 6 + [-10.0] * 2)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    sizes = ("--group-size", "32", "--samples", "40", "--sample-len", "64")
    done = penstock_here("quantize", str(model), "--out", str(tmp_path / "out"), *sizes)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "40 texts: 6 of 24 experts get too few rows, the least 0; the last of these texts had no row for any of them, "
        "so that no more are taken"
    )
    assert "block 2: experts.down_proj of 2 of 8 experts (6, 7) is rounded to the nearest" in done.stdout


def test_a_gguf_file_is_written_and_compared(penstock_here: Run, tmp_path: Path) -> None:
    model = checkpoints.make("qwen3", tmp_path / "model", num_key_value_heads=2, head_dim=32)
    out = tmp_path / "small.gguf"
    done = penstock_here("quantize", str(model), "--out", str(out), "--format", "Q8_0", "--method", "rtn")
    assert done.returncode == 0, done.stderr
    assert f"penstock evaluate {model} {out}" in done.stdout and not (tmp_path / "small.gguf.parts").exists()
    text = tmp_path / "text.txt"
    text.write_text("The rain fell on the roof of the old house. " * 40)
    done = penstock_here("evaluate", str(model), str(out), "--text", str(text), "--context", "64")
    assert "same top" in done.stdout.lower(), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--method", "magic"), "rtn, gptq"),
        (("--format", "Q4_K"), "by --method rtn only"),
        (("--format", "Q4_0", "--method", "mixed", "--bits", "3.5"), "leave --bits out"),
        (("--format", "Q4_0", "--method", "fp8"), "--format Q4_0 cannot hold"),
        (("--format", "Q8_0", "--method", "rtn", "--group-size", "64"), "leave --group-size out"),
        (("--bits", "3.5"), "only --method mixed"),
        (("--method", "mixed"), "an average from 2 to 8"),
        (("--method", "magic", "--bits", "3.5"), "rtn, gptq"),
        (("--method", "fp8", "--bits", "4"), "no use for --bits"),
        (("--method", "awq", "--damping", "0.1"), "no use for --damping"),
        (("--method", "rtn", "--samples", "3", "--group-size", "32"), "leave --samples out"),
        (("--format", "exl2"), "compressed-tensors, gptq, awq, Q8_0, Q4_0, Q4_K, Q6_K"),
        (("--group-size", "48"), "groups of 48"),
        (("--sample-len", "2", "--samples", "4", "--group-size", "32"), "no calibration texts"),
        (("--sample-len", "100000", "--group-size", "32"), "positions"),
        (("--calibration", "nowhere.txt", "--group-size", "32"), "--calibration nowhere.txt cannot be read"),
    ],
)
def test_what_is_refused(
    model: Path, penstock_here: Run, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = penstock_here("quantize", str(model), "--out", str(tmp_path / "out"), *arguments)
    assert done.returncode != 0 and says in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_quantized_checkpoint_is_not_quantized_again(penstock_here: Run, tmp_path: Path) -> None:
    plain = checkpoints.make("llama", tmp_path / "plain")
    folder = quantize(plain, *LAYOUTS["gptq 4"], tmp_path / "gptq")
    done = penstock_here("quantize", str(folder), "--out", str(tmp_path / "out"))
    assert done.returncode != 0 and "quantized already" in done.stderr
