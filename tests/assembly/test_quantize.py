"""Checkpoints that are written with smaller weights."""

import itertools
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.assembly.quantize import STATE, Recipe, check, quantize_model
from penstock.assembly.scoring import CALIBRATION_SEED, COMPARISON_SEED, ScoredText, Scorer, conversations
from penstock.core.config import EngineOptions
from penstock.core.errors import ConfigurationError, ModelFileError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.checkpoint import Checkpoint
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.layouts import LAYOUTS
from penstock.quantization.quality import Comparison, Quality
from penstock.quantization.rtn import Grid
from support import checkpoints
from support.stepping import all_logits, make_stepper

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 4, [41, 3]]
TEXTS = [[(7 * text + 3 * place) % 320 for place in range(40)] for text in range(6)]


def opened(model: str) -> tuple[Checkpoint, ModelDeclaration]:
    prepared = prepare(EngineOptions(model=model, quantization="none", speculative="off"), api_beside=False)
    return prepared.checkpoint, prepared.declaration


def write(model: Path | str, recipe: Recipe, texts: list[list[int]], out: Path) -> list[dict[str, float]]:
    checkpoint, declaration = opened(str(model))
    check(checkpoint, declaration, recipe)
    return [done.error for done in quantize_model(checkpoint, declaration, recipe, texts, out)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("llama", tmp_path_factory.mktemp("model"), num_key_value_heads=2, head_dim=32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_what_is_written_is_a_model_like_it(model: Path, tmp_path: Path, method: str, layout: str) -> None:
    bits = 8 if 8 in LAYOUTS[layout].bits else 4
    texts = [] if method == "rtn" else TEXTS
    errors = write(model, Recipe(method, Grid(bits, 32), layout), texts, tmp_path / "out")
    assert len(errors) == 3 and all(len(block) == 4 for block in errors)
    limit = 1e-4 if bits == 8 else 0.02
    assert all(0 < error < limit for block in errors for error in block.values())
    out = tmp_path / "out"
    assert not (out / STATE).exists() and (out / "tokenizer.json").exists()
    expected, found = (torch.cat(list(all_logits(make_stepper(path), PROMPTS, None))) for path in (model, out))
    assert (expected - found).norm() < (0.04 if bits == 8 else 0.4) * expected.norm()


def test_every_family_can_be_written(tmp_path: Path) -> None:
    for family in ("qwen3", "gemma3"):
        original = checkpoints.make(family, tmp_path / family, hidden_size=96, num_key_value_heads=2, head_dim=32)
        out = tmp_path / f"{family}-out"
        write(original, Recipe("gptq", Grid(4, 16), "compressed-tensors"), TEXTS, out)
        make_stepper(out)


def test_an_interrupted_run_goes_on(model: Path, tmp_path: Path) -> None:
    recipe = Recipe("gptq", Grid(4, 32, symmetric=False), "gptq")
    write(model, recipe, TEXTS, tmp_path / "whole")
    checkpoint, declaration = opened(str(model))
    out = tmp_path / "parts"
    first = list(itertools.islice(quantize_model(checkpoint, declaration, recipe, TEXTS, out), 2))
    assert [done.resumed for done in first] == [False, False] and (out / STATE).exists()
    with pytest.raises(ConfigurationError, match="another run's"):
        list(quantize_model(checkpoint, declaration, recipe, TEXTS[:2], out))
    rest = list(quantize_model(checkpoint, declaration, recipe, TEXTS, out))
    assert [done.resumed for done in rest] == [True, True, False]
    names = sorted(file.name for file in (tmp_path / "whole").iterdir())
    assert names == sorted(file.name for file in out.iterdir())
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_directory_with_something_else_in_it_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="not empty"):
        write(model, Recipe("rtn", Grid(4, 32), "gptq"), [], tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (Recipe("rtn", Grid(4, 48), "gptq"), "groups of 48"),
        (Recipe("rtn", Grid(3, 32), "gptq"), "2, 4, 8 bits, not of 3"),
        (Recipe("rtn", Grid(8, 32), "awq"), "not of 8"),
        (Recipe("gptq", Grid(4, 32), "awq", damping=0.0), "--damping is 0.0"),
    ],
)
def test_what_cannot_be_made_is_said_first(model: Path, tmp_path: Path, recipe: Recipe, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        write(model, recipe, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def compared(base: Scorer, path: Path, texts: list[ScoredText]) -> Quality:
    candidate = Scorer(EngineOptions(model=str(path), dtype="float32", quantization="none", speculative="off"), 512)
    comparison = Comparison()
    for text in texts:
        at = text.compared.nonzero()[:, 0] - 1
        following = torch.tensor(text.ids)[text.compared]
        comparison.add(base.logits(text.ids)[at], candidate.logits(text.ids)[at], following)
    return comparison.result()


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
def test_calibration_pays_on_the_bundled_model(tmp_path: Path) -> None:
    base = Scorer(EngineOptions(model="haiku", dtype="float32", quantization="none", speculative="off"), 512)
    calibration, held_out = (
        conversations(base.path, base.vocab_size, 512, 24, seed=seed) for seed in (CALIBRATION_SEED, COMPARISON_SEED)
    )
    grid = Grid(4, 64, searched=True)
    write("haiku", Recipe("rtn", grid, "compressed-tensors"), [], tmp_path / "rtn")
    write("haiku", Recipe("gptq", grid, "compressed-tensors"), [text.ids for text in calibration], tmp_path / "gptq")
    nearest, found = (compared(base, tmp_path / name, held_out) for name in ("rtn", "gptq"))
    assert found.kl.value < 0.8 * nearest.kl.value


def test_what_cannot_be_rounded_is_named(tmp_path: Path) -> None:
    broken = checkpoints.make("llama", tmp_path / "model", num_key_value_heads=2, head_dim=32)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = torch.inf
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.gate_up_proj.* not finite"):
        write(broken, Recipe("rtn", Grid(4, 32), "gptq"), [], tmp_path / "out")


def test_a_changed_model_is_not_gone_on_with(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "model", num_key_value_heads=2, head_dim=32)
    recipe = Recipe("rtn", Grid(4, 32), "gptq")
    checkpoint, declaration = opened(str(model))
    next(quantize_model(checkpoint, declaration, recipe, [], tmp_path / "out"))
    os.utime(model / "model.safetensors", (1, 1))
    with pytest.raises(ConfigurationError, match="another run's"):
        next(quantize_model(checkpoint, declaration, recipe, [], tmp_path / "out"))
