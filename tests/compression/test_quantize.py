"""Checkpoints that are written with smaller weights."""

import itertools
import os
import shutil
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.assembly.scorer import load_scorer
from penstock.compression.checks import check
from penstock.compression.files import STATE
from penstock.compression.projections import matrices
from penstock.compression.quantize import NO_TEXTS, Done, Measured, Texts, quantize_model
from penstock.compression.scoring import CALIBRATION_SEED, COMPARISON_SEED, ScoredText, TextScorer, conversations
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError, ModelFileError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.processor import this_processor
from penstock.loading.checkpoint import Checkpoint, open_checkpoint
from penstock.loading.tensors import read_tensor
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.layouts import LAYOUTS
from penstock.quantization.quality import Comparison, Quality
from penstock.quantization.recipe import GGUF_TYPES, K_TYPES, Recipe
from penstock.quantization.rtn import Grid
from support import checkpoints
from support.gguf_files import IN_GGUF
from support.stepping import all_logits, make_stepper

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 4, [41, 3]]
TEXTS = Texts([[(7 * text + 3 * place) % 320 for place in range(40)] for text in range(6)])


def opened(model: str) -> tuple[Checkpoint, ModelDeclaration]:
    prepared = prepare(EngineOptions.of(model=model, quantization="none", speculative="off"), api_beside=False)
    return prepared.checkpoint, prepared.declaration


def write(model: Path | str, recipe: Recipe, texts: Texts, out: Path) -> list[dict[str, float]]:
    checkpoint, declaration = opened(str(model))
    check(checkpoint, declaration, recipe)
    events = quantize_model(checkpoint, declaration, recipe, texts, out, this_processor())
    return [event.error for event in events if isinstance(event, Done)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("llama", tmp_path_factory.mktemp("model"), num_key_value_heads=2, head_dim=32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
def test_what_is_written_is_a_model_like_it(model: Path, tmp_path: Path, method: str, layout: str) -> None:
    bits = 8 if 8 in LAYOUTS[layout].bits else 4
    texts = NO_TEXTS if method == "rtn" else TEXTS
    errors = write(model, Recipe(method, Grid(bits, 32), layout), texts, tmp_path / "out")
    assert len(errors) == 3 and all(len(block) == 4 for block in errors)
    limit = 1e-4 if bits == 8 else 0.02
    assert all(0 < error < limit for block in errors for error in block.values())
    out = tmp_path / "out"
    assert not (out / STATE).exists() and (out / "tokenizer.json").exists()
    expected, found = (torch.cat(list(all_logits(make_stepper(path), PROMPTS, None))) for path in (model, out))
    assert (expected - found).norm() < (0.04 if bits == 8 else 0.4) * expected.norm()


@pytest.mark.parametrize(("method", "limit"), [("smoothquant", 1e-4), ("fp8", 1e-3)])
def test_bytes_for_each_weight_are_a_model_like_it(model: Path, tmp_path: Path, method: str, limit: float) -> None:
    recipe = Recipe(method, Grid(8, 0), "compressed-tensors")
    errors = write(model, recipe, TEXTS if recipe.calibrated else NO_TEXTS, tmp_path / "out")
    assert all(0 < error < limit for block in errors for error in block.values())
    expected, found = (
        torch.cat(list(all_logits(make_stepper(path), PROMPTS, None))) for path in (model, tmp_path / "out")
    )
    assert (expected - found).norm() < 0.1 * expected.norm()


def test_widths_follow_what_is_measured(model: Path, tmp_path: Path) -> None:
    recipe = Recipe("mixed", Grid(4, 32), "compressed-tensors", average_bits=3.5)
    checkpoint, declaration = opened(str(model))
    check(checkpoint, declaration, recipe)
    out = tmp_path / "out"
    begun = quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor())
    measured = [event for event in itertools.islice(begun, 5) if isinstance(event, Measured)]
    # What was measured is not measured again.
    begun = quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor())
    measured += [event for event in itertools.islice(begun, 7) if isinstance(event, Measured)]
    assert len({event.name for event in measured}) == 12 and all(
        set(event.sensitivity.loss) == {2, 3, 4, 8} for event in measured
    )
    assert all(event.sensitivity.loss[2] > event.sensitivity.loss[4] > 0 for event in measured)
    first = next(begun)
    rest = list(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()))
    assert [type(event) for event in rest] == [Done] * 3
    assert isinstance(first, Done) and isinstance(rest[0], Done) and rest[0].resumed and rest[0].stored == first.stored
    sizes = {event.name: event.sensitivity.size for event in measured}
    stored = {name: said for event in rest if isinstance(event, Done) for name, said in event.stored.items()}
    bits = {name: int(said.removesuffix(" bits")) for name, said in stored.items()}
    assert bits.keys() == sizes.keys() and len(set(bits.values())) > 1
    assert 3.2 < sum(sizes[name] * width for name, width in bits.items()) / sum(sizes.values()) <= 3.5
    entries = opened(str(out))[0].locate(declaration)
    for block in declaration.decoder.blocks:
        for spec in matrices(block):
            assert {getattr(entries[part.name], "bits", None) for part in spec.parts} == {bits[spec.name]}
    make_stepper(out)


def test_every_family_can_be_written(tmp_path: Path) -> None:
    for family in ("qwen3", "gemma3"):
        original = checkpoints.make(family, tmp_path / family, hidden_size=96, num_key_value_heads=2, head_dim=32)
        out = tmp_path / f"{family}-out"
        write(original, Recipe("gptq", Grid(4, 16), "compressed-tensors"), TEXTS, out)
        make_stepper(out)
        write(original, Recipe("awq", Grid(4, 16), "awq"), TEXTS, tmp_path / f"{family}-awq")
        make_stepper(tmp_path / f"{family}-awq")


SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_key_value_heads": 2, "head_dim": 64}
CHANGES = {**IN_GGUF, "gemma3": {**IN_GGUF["gemma3"], "query_pre_attn_scalar": 64}}


def numbers_of(file: Path, plain: Path, into: Path) -> Path:
    """A checkpoint like `plain` with the numbers that a GGUF file's tensors stand for."""
    entries = open_checkpoint(file).tensors
    shutil.copytree(plain, into)
    tensors = {name: read_tensor(entries[name]).float().contiguous() for name in load_file(plain / "model.safetensors")}
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    return into


# Sizes of mixtures stay small: their matrices are Q8_0 where K types do not fit.
_HEADS = {"num_key_value_heads": 2, "head_dim": 32}
GGUF_FAMILIES = {family: {**SIZES, **CHANGES[family]} for family in checkpoints.FAMILIES} | {
    family: {**IN_GGUF[family], **_HEADS} for family in ("qwen2_moe", "mixtral")
}
GGUF_FAMILIES["qwen3_moe"] = {**IN_GGUF["qwen3_moe"], **_HEADS, "hidden_size": 256, "moe_intermediate_size": 256}
GGUF_FAMILIES["qwen3_moe"] |= {"num_experts": 4, "num_hidden_layers": 1}
GGUF_FAMILIES["olmoe"] = {"num_hidden_layers": 1}


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_every_family_can_be_a_gguf_file(tmp_path: Path, family: str) -> None:
    plain = checkpoints.make(family, tmp_path / family, **GGUF_FAMILIES[family])
    limits = {"Q8_0": 1e-4, "Q4_0": 0.02, "Q4_K": 0.01, "Q6_K": 1e-3}
    for kind, grid in GGUF_TYPES.items():
        out = tmp_path / f"{kind}.gguf"
        errors = write(plain, Recipe("rtn", grid, kind), NO_TEXTS, out)
        assert all(0 < error < limits[kind] for block in errors for error in block.values())
        same = numbers_of(out, plain, tmp_path / f"{family} {kind}")
        expected, found = (all_logits(make_stepper(path), PROMPTS, None) for path in (same, out))
        assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
        original = torch.cat(list(all_logits(make_stepper(plain), PROMPTS, None)))
        # These models' attention is so peaked that fewer bits change much of it.
        if kind == "Q8_0":
            assert (torch.cat(list(found)) - original).norm() < 0.15 * original.norm()
    reader = gguf.GGUFReader(tmp_path / "Q4_K.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    whole = GGUF_FAMILIES[family].get("hidden_size", 64) == 256
    assert kinds["blk.0.attn_q.weight"] == ("Q4_K" if whole else "Q8_0")
    assert kinds.get("blk.0.ffn_gate_inp.weight", "F32") == kinds.get("blk.0.ffn_gate_inp_shexp.weight", "F32") == "F32"
    assert kinds.get("blk.0.ffn_up_exps.weight", kinds["blk.0.attn_q.weight"]) == kinds["blk.0.attn_q.weight"]
    assert kinds["token_embd.weight"] == kinds["output_norm.weight"] == "F32"


@pytest.mark.parametrize("kind", K_TYPES)
def test_matrices_that_are_not_whole_blocks_have_smaller_ones(tmp_path: Path, kind: str) -> None:
    plain = checkpoints.make("qwen3", tmp_path / "model", **{**SIZES, "intermediate_size": 352})
    checkpoint, declaration = opened(str(plain))
    out = tmp_path / "a.gguf"
    recipe = Recipe("rtn", GGUF_TYPES[kind], kind)
    events = list(quantize_model(checkpoint, declaration, recipe, NO_TEXTS, out, this_processor()))
    stored = [event.stored for event in events if isinstance(event, Done)]
    apart = [spec.name for block in declaration.decoder.blocks for spec in matrices(block) if spec.shape[1] == 352]
    assert stored == [{name: "Q8_0"} for name in apart] and apart
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(out).tensors}
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0" and kinds["blk.0.ffn_up.weight"] == kind
    same = numbers_of(out, plain, tmp_path / "numbers")
    expected, found = (all_logits(make_stepper(path), PROMPTS, None) for path in (same, out))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_calibrated_gguf_file_goes_on_where_it_was_interrupted(tmp_path: Path, method: str) -> None:
    plain = checkpoints.make("llama", tmp_path / "model", **{**SIZES, **CHANGES["llama"]})
    recipe = Recipe(method, GGUF_TYPES["Q4_0"], "Q4_0")
    whole = write(plain, recipe, TEXTS, tmp_path / "whole.gguf")
    checkpoint, declaration = opened(str(plain))
    out = tmp_path / "parts.gguf"
    first = list(itertools.islice(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()), 2))
    assert [done.error for done in first] == whole[:2] and not out.exists()
    rest = list(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()))
    assert [done.resumed for done in rest] == [True, True, False]
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "parts.gguf", "whole.gguf"]
    with pytest.raises(ConfigurationError, match=r"parts.gguf is there already"):
        write(plain, recipe, TEXTS, out)


@pytest.mark.parametrize(
    ("family", "kind", "changes", "says"),
    [
        ("mistral", "Q8_0", {}, "has no name for"),
        ("llama", "Q8_0", {}, "divides|has no name for"),
        ("qwen3_moe", "Q8_0", {"num_key_value_heads": 2}, "layers with experts that the format has no name for"),
        ("granitemoe", "Q8_0", {"num_key_value_heads": 2}, "GGUF files of GraniteMoeForCausalLM are not written"),
    ],
)
def test_what_a_gguf_file_has_no_place_for_is_said_first(
    tmp_path: Path, family: str, kind: str, changes: dict[str, object], says: str
) -> None:
    plain = checkpoints.make(family, tmp_path / "model", **{**SIZES, **changes})
    with pytest.raises(ConfigurationError, match=says):
        write(plain, Recipe("rtn", GGUF_TYPES[kind], kind), NO_TEXTS, tmp_path / "a.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_gguf_file_is_called_one(tmp_path: Path) -> None:
    plain = checkpoints.make("qwen3", tmp_path / "model", **SIZES)
    with pytest.raises(ConfigurationError, match=r"ends with \.gguf"):
        write(plain, Recipe("rtn", GGUF_TYPES["Q8_0"], "Q8_0"), NO_TEXTS, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_run_goes_on(model: Path, tmp_path: Path) -> None:
    recipe = Recipe("gptq", Grid(4, 32, symmetric=False), "gptq")
    write(model, recipe, TEXTS, tmp_path / "whole")
    checkpoint, declaration = opened(str(model))
    out = tmp_path / "parts"
    first = list(itertools.islice(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()), 2))
    assert [done.resumed for done in first] == [False, False] and (out / STATE).exists()
    with pytest.raises(ConfigurationError, match="another run's"):
        list(quantize_model(checkpoint, declaration, recipe, Texts(TEXTS.first[:2]), out, this_processor()))
    rest = list(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()))
    assert [done.resumed for done in rest] == [True, True, False]
    names = sorted(file.name for file in (tmp_path / "whole").iterdir())
    assert names == sorted(file.name for file in out.iterdir())
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_directory_with_something_else_in_it_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="not empty"):
        write(model, Recipe("rtn", Grid(4, 32), "gptq"), NO_TEXTS, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (Recipe("rtn", Grid(4, 48), "gptq"), "groups of 48"),
        (Recipe("rtn", Grid(3, 32), "gptq"), "2, 4, 8 bits, not of 3"),
        (Recipe("rtn", Grid(8, 32), "awq"), "not of 8"),
        (Recipe("gptq", Grid(4, 32), "awq", damping=0.0), "--damping is 0.0"),
        (Recipe("mixed", Grid(4, 32), "compressed-tensors"), "an average from 2 to 8"),
        (Recipe("mixed", Grid(4, 32), "compressed-tensors", average_bits=1.9), "an average from 2 to 8"),
        (Recipe("mixed", Grid(4, 32), "gptq", average_bits=3.5), "--format gptq cannot hold"),
        (Recipe("fp8", Grid(4, 32), "awq"), "--format awq cannot hold"),
    ],
)
def test_what_cannot_be_made_is_said_first(model: Path, tmp_path: Path, recipe: Recipe, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        write(model, recipe, NO_TEXTS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def scorer(model: str) -> TextScorer:
    options = EngineOptions.of(model=model, dtype="float32", quantization="none", speculative="off", threads=1)
    return load_scorer(options, 512)


def compared(base: TextScorer, path: Path, texts: list[ScoredText]) -> Quality:
    candidate = scorer(str(path))
    comparison = Comparison()
    for text in texts:
        at = text.compared.nonzero()[:, 0] - 1
        following = torch.tensor(text.ids)[text.compared]
        comparison.add(base.logits(text.ids)[at], candidate.logits(text.ids)[at], following)
    return comparison.result()


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("model", ["haiku-draft", pytest.param("haiku", marks=pytest.mark.slow)])
def test_calibration_pays_on_a_bundled_model(model: str, tmp_path: Path) -> None:
    base = scorer(model)
    calibration, held_out = (
        conversations(base.path, base.vocab_size, 512, 24, seed=seed) for seed in (CALIBRATION_SEED, COMPARISON_SEED)
    )
    grid = Grid(4, 64, searched=True)
    write(model, Recipe("rtn", grid, "compressed-tensors"), NO_TEXTS, tmp_path / "rtn")
    for method in ("gptq", "awq"):
        recipe = Recipe(method, grid, "compressed-tensors")
        write(model, recipe, Texts([text.ids for text in calibration]), tmp_path / method)
    nearest, gptq, awq = (compared(base, tmp_path / name, held_out).kl.value for name in ("rtn", "gptq", "awq"))
    assert gptq < 0.8 * nearest and awq < 0.9 * nearest


def test_what_cannot_be_rounded_is_named(tmp_path: Path) -> None:
    broken = checkpoints.make("llama", tmp_path / "model", num_key_value_heads=2, head_dim=32)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = torch.inf
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.gate_up_proj.* not finite"):
        write(broken, Recipe("rtn", Grid(4, 32), "gptq"), NO_TEXTS, tmp_path / "out")


def test_a_changed_model_is_not_gone_on_with(tmp_path: Path) -> None:
    model = checkpoints.make("llama", tmp_path / "model", num_key_value_heads=2, head_dim=32)
    recipe = Recipe("rtn", Grid(4, 32), "gptq")
    checkpoint, declaration = opened(str(model))
    next(quantize_model(checkpoint, declaration, recipe, NO_TEXTS, tmp_path / "out", this_processor()))
    os.utime(model / "model.safetensors", (1, 1))
    with pytest.raises(ConfigurationError, match="another run's"):
        next(quantize_model(checkpoint, declaration, recipe, NO_TEXTS, tmp_path / "out", this_processor()))


@pytest.mark.parametrize("method", ["gptq", "awq", "smoothquant", "mixed"])
def test_inputs_that_are_not_finite_are_named(tmp_path: Path, method: str) -> None:
    broken = checkpoints.make("llama", tmp_path / "model", num_key_value_heads=2, head_dim=32)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"][3] = torch.inf
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    recipe = Recipe(method, Grid(4, 32), "compressed-tensors", average_bits=3.5 if method == "mixed" else None)
    with pytest.raises(ConfigurationError, match=r"layers\.1\.self_attn\.qkv_proj.* not all finite"):
        write(broken, recipe, TEXTS, tmp_path / "out")
