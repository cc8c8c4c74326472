"""Gemma 4 of text alone and within wrappers, and GPT-2: what is written is what Penstock and others read."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig
from transformers.models.gemma4 import Gemma4Config, Gemma4ForConditionalGeneration
from transformers.models.gemma4_unified import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

from penstock.assembly.prepare import prepare
from penstock.compression.checks import check, left_out
from penstock.compression.quantize import NO_TEXTS, Done, Texts, quantize_model
from penstock.compression.rewriting import as_written, remarks
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.processor import this_processor
from penstock.loading.checkpoint import Checkpoint, open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.recipe import GGUF_TYPES, Recipe
from penstock.quantization.rtn import Grid
from support import checkpoints
from support.families import BY_FAMILY, COMMON
from support.stepping import all_logits, make_stepper
from support.written import all_tensors, numbers_of, write_plain

PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 6, [41, 3]]
TEXTS = Texts([[(7 * text + 3 * place) % 320 for place in range(70)] for text in range(6)])
SIZES: dict[str, dict[str, Any]] = {
    "gemma4": {"head_dim": 32, "global_head_dim": 64, "hidden_size_per_layer_input": 32},
    "gpt2": {"n_embd": 64},
}
RECIPES = {
    "rtn": Recipe("rtn", Grid(4, 32), "compressed-tensors"),
    "gptq": Recipe("gptq", Grid(4, 32), "compressed-tensors"),
    "awq": Recipe("awq", Grid(4, 32), "compressed-tensors"),
    "gptq, 8 bits": Recipe("gptq", Grid(8, 32), "compressed-tensors"),
    "smoothquant": Recipe("smoothquant", Grid(8, 0), "compressed-tensors"),
    "fp8": Recipe("fp8", Grid(8, 0), "compressed-tensors"),
}
# Mean KL divergence from the model as it is, in nats, that a random model keeps below.
MOST_KL = {"rtn": 0.08, "gptq": 0.08, "awq": 0.12, "gptq, 8 bits": 1e-3, "smoothquant": 1e-3, "fp8": 0.01}


def opened(model: Path) -> tuple[Checkpoint, ModelDeclaration]:
    prepared = prepare(EngineOptions.of(model=str(model), quantization="none", speculative="off"), api_beside=False)
    return prepared.checkpoint, prepared.declaration


def write(model: Path, recipe: Recipe, out: Path) -> list[dict[str, float]]:
    checkpoint, declaration = opened(model)
    check(checkpoint, declaration, recipe)
    texts = TEXTS if recipe.calibrated else NO_TEXTS
    events = quantize_model(checkpoint, declaration, recipe, texts, out, this_processor())
    return [event.error for event in events if isinstance(event, Done)]


def logits_of(folder: Path, packing: PackedWeights | None = None) -> torch.Tensor:
    stepper = make_stepper(folder) if packing is None else make_stepper(folder, packing=packing)
    return torch.cat(list(all_logits(stepper, PROMPTS, None)))


def referred(folder: Path) -> torch.Tensor:
    """transformers' logits."""
    reference = checkpoints.load_reference(folder)
    return torch.cat([checkpoints.reference_logits(reference, prompt) for prompt in PROMPTS])


@pytest.mark.parametrize("method", RECIPES)
@pytest.mark.parametrize("family", SIZES)
def test_what_is_written_is_a_model_like_it(family: str, method: str, tmp_path: Path) -> None:
    model, out, recipe = tmp_path / "model", tmp_path / "out", RECIPES[method]
    checkpoints.make(family, model, confident=True, **SIZES[family])
    errors = write(model, recipe, out)
    limit = 0.03 if recipe.grid.bits == 4 else 2e-3
    assert all(0 < error < limit for block in errors for error in block.values())
    found, expected = logits_of(out), logits_of(model)
    base, other = expected.log_softmax(1), found.log_softmax(1)
    assert 0 < float((base.exp() * (base - other)).sum(1).mean()) < MOST_KL[method]
    numbers = numbers_of(out, recipe.grid.bits)
    assert torch.equal(found, logits_of(write_plain(numbers, out, tmp_path / "plain")))
    if family == "gpt2":
        # transformers has these matrices the other way round.
        numbers = {name: tensor.T if ".h." in name and tensor.ndim == 2 else tensor for name, tensor in numbers.items()}
    plain = write_plain(numbers, model, tmp_path / "theirs")
    assert (found - referred(plain)).abs().max() < 1e-4


@pytest.mark.parametrize("family", SIZES)
def test_widths_are_chosen(family: str, tmp_path: Path) -> None:
    # Each matrix is measured at four widths: one layer of each kind that stores keys, and of each that borrows them.
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    fewer = layers if family == "gemma4" else {}
    model = checkpoints.make(family, tmp_path / "model", confident=True, **SIZES[family], **fewer)
    recipe = Recipe("mixed", Grid(4, 32), "compressed-tensors", average_bits=4.0)
    errors = write(model, recipe, tmp_path / "out")
    # Six projections of a block of Gemma 4, four of one of GPT-2.
    assert {len(block) for block in errors} == {6 if family == "gemma4" else 4}
    found, expected = logits_of(tmp_path / "out"), logits_of(model)
    assert 0 < (found - expected).norm() < 0.4 * expected.norm()


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("layout", ["compressed-tensors", "gptq", "awq"])
@pytest.mark.parametrize("family", SIZES)
def test_kernels_take_the_integers(family: str, layout: str, tmp_path: Path) -> None:
    """Activations are rounded to 8 bits then, which is all that differs."""
    model = checkpoints.make(family, tmp_path / "model", confident=True, **SIZES[family])
    write(model, Recipe("gptq", Grid(4, 32, symmetric=False), layout), tmp_path / "out")
    checkpoint, own = open_checkpoint(tmp_path / "out"), PackedWeights("own", "own")
    declaration = model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=own)
    matrices = [spec.name for block in declaration.decoder.blocks for spec in block.weights if spec.role == "linear"]
    packed = [weights[name] for name in matrices]
    assert packed and all(isinstance(each, NativeLinear) and str(each.form) != "float32" for each in packed)
    expected, found = logits_of(tmp_path / "out"), logits_of(tmp_path / "out", own)
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("finished", [3, 5])
def test_an_interrupted_run_goes_on_with_the_keys_that_are_borrowed(finished: int, tmp_path: Path) -> None:
    model, recipe = checkpoints.make("gemma4", tmp_path / "model", **SIZES["gemma4"]), RECIPES["gptq"]
    write(model, recipe, tmp_path / "whole")
    checkpoint, declaration = opened(model)
    out = tmp_path / "parts"
    list(itertools.islice(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()), finished))
    rest = list(quantize_model(checkpoint, declaration, recipe, TEXTS, out, this_processor()))
    assert [event.resumed for event in rest if isinstance(event, Done)] == [place < finished for place in range(6)]
    for file in (tmp_path / "whole").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()


def test_what_gemma_4_keeps(tmp_path: Path) -> None:
    model = checkpoints.make("gemma4", tmp_path / "model", **SIZES["gemma4"])
    write(model, RECIPES["rtn"], tmp_path / "out")
    said = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert said["ignore"] == ["lm_head", "model.per_layer_model_projection"]
    written, original = all_tensors(tmp_path / "out"), load_file(model / "model.safetensors")
    kept = {name for name in written if not name.endswith(("_packed", "_scale", "_shape"))}
    assert {"model.embed_tokens_per_layer.weight", "model.layers.0.layer_scalar"} <= kept
    assert all(torch.equal(written[name], original[name]) for name in kept)
    # Layers that borrow keys have queries alone.
    assert "model.layers.3.self_attn.k_proj.weight_packed" in written
    assert not any(name.startswith("model.layers.5.self_attn.k_") for name in written)


def test_gpt2_is_written_the_other_way_round_and_told(tmp_path: Path) -> None:
    model = checkpoints.make("gpt2", tmp_path / "model", **SIZES["gpt2"])
    (remark,) = remarks(opened(model)[1])
    assert "matrices_across = false. Penstock reads that. transformers does not" in remark
    write(model, RECIPES["rtn"], tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["matrices_across"] is False
    with pytest.raises(ValueError, match="model_type"):
        AutoConfig.from_pretrained(tmp_path / "out")
    original = load_file(model / "model.safetensors")["transformer.h.0.mlp.c_fc.weight"]
    found = numbers_of(tmp_path / "out", 4)["transformer.h.0.mlp.c_fc.weight"]
    assert found.shape == original.T.shape and (found - original.T).norm() < 0.2 * original.norm()


def test_other_models_are_written_as_they_are(tmp_path: Path) -> None:
    checkpoint, declaration = opened(checkpoints.make("llama", tmp_path))
    assert as_written(checkpoint, declaration) == (checkpoint, declaration) and remarks(declaration) == []


_TEXT = {**COMMON, **BY_FAMILY["gemma4"][1], **SIZES["gemma4"]}
_UNIFIED = {**_TEXT, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}
_OF_LAYERS = ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "use_double_wide_mlp")
WRAPPERS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "gemma4": (
        Gemma4ForConditionalGeneration,
        Gemma4Config,
        _TEXT,
        {
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "position_embedding_size": 64,
            },
            "audio_config": None,
        },
    ),
    "gemma4_unified": (
        Gemma4UnifiedForConditionalGeneration,
        Gemma4UnifiedConfig,
        {key: value for key, value in _UNIFIED.items() if key not in _OF_LAYERS},
        {"vision_config": {"mm_posemb_size": 16}, "audio_config": {}},
    ),
}


def make_wrapper(name: str, path: Path) -> Path:
    """A checkpoint that also reads images."""
    model_class, config_class, text, rest = WRAPPERS[name]
    config = config_class(text_config=text, image_token_id=300, **rest, eos_token_id=[2, 7])
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation="eager")
    checkpoints.randomise(model, torch.Generator().manual_seed(0), unit_offset=0.0)
    model.eval().save_pretrained(path)
    checkpoints.write_tokenizer(path)
    return path


@pytest.mark.parametrize("method", ["gptq, 8 bits", "smoothquant"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_of_a_wrapper_the_text_model_alone_is_written(name: str, method: str, tmp_path: Path) -> None:
    model, out = make_wrapper(name, tmp_path / "model"), tmp_path / "out"
    checkpoint, declaration = opened(model)
    assert remarks(declaration) == ["Written is the text model alone, which reads no images and no sounds."]
    assert any("vision" in each for each in left_out(checkpoint, declaration))
    write(model, RECIPES[method], out)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["Gemma4ForCausalLM"] and config["model_type"] == "gemma4_text"
    assert config["eos_token_id"] == [2, 7] and "text_config" not in config and "vision_config" not in config
    assert not any("vision" in each or "language_model" in each for each in all_tensors(out))
    assert opened(out)[1].decoder == declaration.decoder
    found, expected = logits_of(out), logits_of(model)
    assert 0 < (found - expected).norm() < 0.3 * expected.norm()
    plain = write_plain(numbers_of(out, 8), out, tmp_path / "plain")
    # Attention of these models is so peaked that rounding adds up.
    assert (found - referred(plain)).abs().max() < 5e-4


@pytest.mark.parametrize("name", [*WRAPPERS, "text", "gpt2"])
def test_gguf_files_of_them_are_refused(name: str, tmp_path: Path) -> None:
    if name in WRAPPERS:
        model = make_wrapper(name, tmp_path / "model")
    else:
        family = "gemma4" if name == "text" else name
        model = checkpoints.make(family, tmp_path / "model", **SIZES[family])
    with pytest.raises(ConfigurationError, match=r"GGUF files of (Gemma4|GPT2)\w+ are not written"):
        write(model, Recipe("rtn", GGUF_TYPES["Q8_0"], "Q8_0"), tmp_path / "a.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
