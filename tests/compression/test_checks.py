"""What is refused is said at once, before anything is computed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.compression.checks import check, left_out
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.quantization.recipe import Recipe
from penstock.quantization.rtn import Grid
from support import checkpoints

RECIPE = Recipe("gptq", Grid(4, 64), "compressed-tensors")


def refusal(model: Path, recipe: Recipe = RECIPE) -> str:
    prepared = prepare(EngineOptions.of(model=str(model), quantization="none", speculative="off"), api_beside=False)
    with pytest.raises(ConfigurationError) as refused:
        check(prepared.checkpoint, prepared.declaration, recipe)
    return str(refused.value)


def test_all_sizes_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    sizes = {"hidden_size": 96, "head_dim": 32, "num_key_value_heads": 2, "moe_intermediate_size": 40}
    said = refusal(checkpoints.make("qwen3_moe", tmp_path, **sizes, mlp_only_layers=[]))
    assert said == (
        "penstock quantize cannot write Qwen3MoeForCausalLM: model.layers.0.self_attn.q_proj.weight has 96 inputs, "
        "which are not in groups of 64 (--group-size); model.layers.0.mlp.experts.0.gate_proj.weight is 40 × 96, of "
        "which both must be multiples of 32; model.layers.0.mlp.experts.0.down_proj.weight is 96 × 40, of which both "
        "must be multiples of 32."
    )


def test_a_model_that_reads_images_too(tmp_path: Path) -> None:
    model = checkpoints.make("qwen3", tmp_path, num_key_value_heads=1, head_dim=40)
    config = json.loads((model / "config.json").read_text())
    text = {key: value for key, value in config.items() if key != "architectures"}
    config = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text, "dtype": "float32"}
    (model / "config.json").write_text(json.dumps(config))
    said = refusal(model)
    assert "give a checkpoint of the text model alone; " in said and "k_proj.weight is 40 × 64" in said


def test_tensors_that_are_not_written_are_known(tmp_path: Path) -> None:
    model = checkpoints.make("gpt_neox", tmp_path, hidden_size=128, intermediate_size=128)
    tensors = load_file(model / "model.safetensors")
    tensors["gpt_neox.layers.1.attention.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    prepared = prepare(EngineOptions.of(model=str(model), quantization="none", speculative="off"), api_beside=False)
    check(prepared.checkpoint, prepared.declaration, RECIPE)
    assert left_out(prepared.checkpoint, prepared.declaration) == ["gpt_neox.layers.1.attention.rotary_emb.inv_freq"]
