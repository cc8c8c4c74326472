"""What configurations say of models: parameters that are known, and what a token keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.errors import ConfigurationError
from penstock.models.registry import declare
from penstock.planning.hardware import device_of
from penstock.planning.latency import Deployment, decode_step, prefill_step
from penstock.planning.priors import TYPICAL
from penstock.planning.reading import shape_of
from penstock.planning.shape import MlpShape

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("Llama-3.1-8B", 8.03, 7.5),
        ("Llama-3.1-70B", 70.6, 69.5),
        ("Llama-3.1-405B", 405.9, 403.8),
        ("Llama-7B", 6.74, 6.61),
        ("Mistral-7B", 7.24, 7.11),
        ("Qwen3-32B", 32.8, 32.0),
        ("Qwen3-30B-A3B", 30.5, 3.04),
        ("Qwen3-235B-A22B", 235.1, 21.6),
        ("gpt-oss-120b", 116.8, 5.1),
        ("gpt-oss-20b", 20.9, 3.6),
        ("DeepSeek-V3", 671.0, 36.6),
        ("Mixtral-8x7B", 46.7, 12.8),
        ("Mixtral-8x22B", 140.6, 39.0),
        ("MiniMax-M2.5", 228.7, 10.4),
        ("Qwen3.5-397B-A17B", 396.3, 16.3),
        ("GPT-J-6B", 6.05, 5.84),
    ],
)
def test_parameters_are_those_that_are_published(name: str, billions: float, active: float) -> None:
    shape = shape_of(MODELS[name])
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.01)
    assert shape.assumed == ()


def test_only_key_heads_are_kept() -> None:
    """The cache of Llama 3 70B is an eighth of what its query heads would make it."""
    config = MODELS["Llama-3.1-70B"]
    assert shape_of(config).kept_values(1) * 2 == 327_680
    assert shape_of(config | {"num_key_value_heads": 64}).kept_values(1) * 2 == 8 * 327_680
    # Llama 2 7B has no shared heads: 2.15 GB for 4,096 tokens.
    assert shape_of(MODELS["Llama-7B"]).kept_values(4096) * 2 == 2_147_483_648


def test_devices_beyond_the_key_heads_keep_copies() -> None:
    shape = shape_of(MODELS["Llama-3.1-70B"])
    assert shape.kept_values(1, 8) == shape.kept_values(1) / 8 == shape.kept_values(1, 16)


def test_latents_are_not_split() -> None:
    shape = shape_of(MODELS["DeepSeek-V3"])
    assert shape.kept_values(1) == 61 * 576 == shape.kept_values(1, 8)


def test_windows_keep_no_more_than_they_see() -> None:
    shape = shape_of(MODELS["gpt-oss-20b"])
    # Of 24 layers, 12 see all.
    each = 2 * 8 * 64
    assert shape.kept_values(100) == 24 * each * 100
    assert shape.kept_values(4096) == 12 * each * (4096 + 128)


def test_recurrent_layers_keep_a_state_a_sequence() -> None:
    shape = shape_of(MODELS["Qwen3.5-397B-A17B"])
    assert shape.kept_values(1) == 15 * 2 * 2 * 256
    assert shape.sequence_values == 45 * (64 * 128 * 128 + 3 * (2 * 16 * 128 + 64 * 128))


_GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "global_head_dim": 32,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
_SMALL = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 600, "num_kv_shared_layers": 3}
_MIXED = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32, "hidden_size_per_layer_input": 0}


@pytest.mark.parametrize(
    "own",
    [
        {**_SMALL, "use_double_wide_mlp": True},
        {**_MIXED, "enable_moe_block": True, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {
            **_MIXED,
            "enable_moe_block": False,
            "per_layer_config": dict.fromkeys("135", {"head_dim": 48, "num_key_value_heads": 4}),
        },
    ],
    ids=["inputs of layers, borrowed keys", "experts, keys as values", "sizes by layer"],
)
def test_parameters_of_gemma_4_are_those_that_are_served(own: dict[str, Any]) -> None:
    shape, declaration = shape_of(_GEMMA4 | own), declare(_GEMMA4 | own)
    matrices = [spec for spec in declaration.weights if spec.neutral is None and spec.role != "head"]
    assert shape.parameters == sum(spec.size for spec in matrices)
    kept = sum(2 * layer.kv_heads * layer.head_dim for layer in declaration.kv_layers)
    assert shape.kept_values(1) == kept


def test_what_layers_borrow_is_read_and_not_kept() -> None:
    shape = shape_of(_GEMMA4 | _SMALL)
    # The last three layers read what the two before them keep.
    local, wide = 2 * 2 * 24, 2 * 2 * 32
    assert shape.kept_values(1) == 2 * local + wide
    assert shape.read_values(1) == 3 * local + 3 * wide
    assert shape.read_values(100) == 3 * local * 64 + 3 * wide * 100


def test_late_layers_multiply_for_tokens_with_logits_alone() -> None:
    config = _GEMMA4 | _SMALL | {"use_double_wide_mlp": True}
    shape, declaration = shape_of(config), declare(config)
    assert [layer.late for layer in shape.layers] == [False, False, True, True]
    # Plans count with each layer its part of the projection to the inputs of all, which is a percent of it.
    assert shape.late_parameters == declaration.late_parameters + 3 * 128 * 16
    # Queries and the way back, MLPs of twice the width, and ways from and to the layers' inputs.
    assert declaration.late_parameters == 128 * 4 * 2 * (32 + 24 + 32) + 3 * (3 * 128 * 192 + 2 * 128 * 16)
    head, late = shape.head_parameters, shape.late_parameters
    assert shape.products(1, 1) == shape.active_parameters
    assert shape.products(100, 1) == 100 * (shape.active_parameters - head - late) + head + late
    assert shape_of(_GEMMA4 | _MIXED).late_parameters == declare(_GEMMA4 | _MIXED).late_parameters == 0


def test_late_layers_shorten_a_prompt_and_no_decode() -> None:
    shape = shape_of(_GEMMA4 | _SMALL)
    whole = replace(shape, layers=tuple(replace(layer, late=False) for layer in shape.layers))
    late, early = (Deployment(each, device_of("h100")) for each in (shape, whole))
    mine, other = (prefill_step(each, TYPICAL, 512.0) for each in (late, early))
    per_token = shape.active_parameters - shape.head_parameters
    assert mine.multiplying / other.multiplying == pytest.approx(
        (512 * (per_token - shape.late_parameters) + shape.head_parameters + shape.late_parameters)
        / (512 * per_token + shape.head_parameters)
    )
    # Of full attention 512 · 513 / 2 pairs, of late layers those of the last token.
    local, full = 512 * 64 - 64 * 63 // 2, 512 * 513 // 2
    assert mine.attention / other.attention == pytest.approx(
        ((2 * local + 64) * 24 + (full + 2 * 512) * 32) / (3 * local * 24 + 3 * full * 32)
    )
    assert decode_step(late, TYPICAL, 8.0, 300.0) == decode_step(early, TYPICAL, 8.0, 300.0)


def test_experts_that_tokens_touch() -> None:
    """Of 128 experts of which a token takes 8, 16 tokens touch 82 and 32 touch 112."""
    mlp = MlpShape(parameters=0, experts=128, chosen=8, expert_parameters=1)
    assert mlp.touched(1) == pytest.approx(8)
    assert round(mlp.touched(16)) == 82 and round(mlp.touched(32)) == 112
    assert MlpShape(parameters=10).touched(5) == 0


def test_text_within_a_multimodal_configuration() -> None:
    assert shape_of({"model_type": "wrapper", "text_config": MODELS["Llama-3.1-8B"]}) == shape_of(
        MODELS["Llama-3.1-8B"]
    )


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_a_number_without_which_nothing_can_be_said_is_named(missing: str) -> None:
    config = {name: value for name, value in MODELS["Llama-3.1-8B"].items() if name != missing}
    with pytest.raises(ConfigurationError, match=missing):
        shape_of(config)


@pytest.mark.parametrize("wrong", [0, -3, "many", None, True, 1.5])
def test_a_number_that_is_none_is_missing(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="hidden_size"):
        shape_of(MODELS["Llama-3.1-8B"] | {"hidden_size": wrong})


def test_chunks_of_llama_4_are_windows() -> None:
    config = MODELS["Llama-4-Scout"] | {"layer_types": ["chunked_attention"] * 48, "attention_chunk_size": 8192}
    assert {layer.attention.window for layer in shape_of(config).layers} == {8192}


def test_names_that_are_not_one_a_layer_are_told() -> None:
    shape = shape_of(MODELS["Llama-3.1-8B"] | {"layer_types": ["full_attention"], "sliding_window": 128})
    assert shape.layers[0].attention.window is None and "layer_types" in shape.assumed[0]


def test_how_often_a_layer_is_sparse_may_be_a_list() -> None:
    config = MODELS["Qwen3-30B-A3B"] | {"moe_layer_freq": [0, *[1] * 47]}
    assert [(layer.count, bool(layer.mlp.experts)) for layer in shape_of(config).layers] == [(1, False), (47, True)]


@pytest.mark.parametrize("wrong", [1e308, 10**13])
def test_no_model_is_so_large(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match="num_hidden_layers"):
        shape_of(MODELS["Llama-3.1-8B"] | {"num_hidden_layers": wrong})


def test_a_pattern_that_is_not_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hybrid_override_pattern"):
        shape_of(MODELS["Llama-3.1-8B"] | {"hybrid_override_pattern": "M-M*"})


def test_an_encoder_beside_the_decoder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="an encoder and a decoder"):
        shape_of({"is_encoder_decoder": True, "d_model": 512, "num_hidden_layers": 6, "decoder_attention_heads": 8})


def test_two_matrices_without_a_gate() -> None:
    gated, plain = (shape_of(MODELS["Llama-7B"] | {"model_type": name}) for name in ("llama", "starcoder2"))
    assert gated.mlp_parameters == 1.5 * plain.mlp_parameters


def test_what_was_assumed_is_told() -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    assert [what.split(",")[0] for what in shape_of(config).assumed] == [
        "a vocabulary of 128",
        "as many KV heads as query heads (4)",
    ]
