"""config.json: read in both spellings, refused by name where a value is not implemented."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.kv import LayerKV
from penstock.kernels.places import LinearRope, Llama3Rope, RopeSpec
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from support import checkpoints

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
}
ALL = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3, "gemma3": GEMMA}


def _ropes(declaration: ModelDeclaration) -> list[RopeSpec]:
    return [block.attention.rope for block in declaration.decoder.blocks]


def _windows(declaration: ModelDeclaration) -> list[int | None]:
    return [layer.window for layer in declaration.kv_layers]


def test_declaration_says_what_the_engine_needs() -> None:
    declaration = declare(LLAMA)
    assert (declaration.architecture, declaration.family) == ("LlamaForCausalLM", "llama")
    assert (declaration.vocab_size, declaration.max_position_embeddings) == (100, 2048)
    assert declaration.dtype == "bfloat16"
    assert declaration.kv_layers == (LayerKV(2, 16), LayerKV(2, 16))
    attention = 64 * (64 + 2 * 32) + 64 * 64
    assert declaration.num_parameters == 2 * 100 * 64 + 64 + 2 * (attention + 3 * 64 * 96 + 2 * 64)
    assert declaration.resident_parameters == declaration.num_parameters
    tied = declare({**LLAMA, "tie_word_embeddings": True})
    assert tied.num_parameters == declaration.num_parameters - 100 * 64
    assert tied.resident_parameters == declaration.resident_parameters, "its head is packed beside the embedding"


def test_fused_weights_name_their_parts_in_order() -> None:
    weights = {weight.name: weight for weight in declare(QWEN2).weights}
    qkv = weights["model.layers.1.self_attn.qkv_proj.weight"]
    assert [(part.tensor, part.shape) for part in qkv.parts] == [
        ("model.layers.1.self_attn.q_proj.weight", (64, 64)),
        ("model.layers.1.self_attn.k_proj.weight", (32, 64)),
        ("model.layers.1.self_attn.v_proj.weight", (32, 64)),
    ]
    assert (qkv.shape, qkv.role) == ((128, 64), "linear")
    assert weights["model.layers.1.self_attn.qkv_proj.bias"].shape == (128,)
    assert "model.layers.1.self_attn.o_proj.bias" not in weights
    assert weights["model.layers.0.mlp.gate_up_proj.weight"].shape == (192, 64)


def test_older_and_newer_keys_mean_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    older = declare({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}})
    oldest = declare({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}})
    newer = declare({**LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}})
    expected = RopeSpec(16, 5e5, Llama3Rope(8.0, 1.0, 4.0, 64))
    assert _ropes(older) == _ropes(oldest) == _ropes(newer) == [expected, expected]
    without = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    assert declare({**without, "dtype": "float16"}).dtype == "float16"
    assert declare(without).dtype == "float32"


@pytest.mark.parametrize("kind", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}])
def test_original_context_matters_to_llama3_scaling_only(kind: dict[str, Any]) -> None:
    with_original = {**kind, "original_max_position_embeddings": 64}
    assert declare({**LLAMA, "rope_parameters": with_original}) == declare({**LLAMA, "rope_parameters": kind})


def test_gemma_keys_in_both_spellings() -> None:
    older = declare(
        {
            **GEMMA,
            "rope_theta": 1e6,
            "rope_local_base_freq": 5e3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window": 512,
            "sliding_window_pattern": 3,
        }
    )
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    newer = declare(
        {
            **GEMMA,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
            "sliding_window": 512,
            "layer_types": kinds,
        }
    )
    assert older.decoder == newer.decoder
    assert _windows(older) == [512, 512, None, 512, 512, None, 512]
    local, full = RopeSpec(256, 5e3), RopeSpec(256, 1e6, LinearRope(8.0))
    assert _ropes(older) == [local, local, full, local, local, full, local]


def test_gemma_defaults_are_those_of_its_first_release() -> None:
    declaration = declare({"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6})
    heads = declaration.decoder.blocks[0].attention.heads
    assert (heads.query_heads, heads.kv_heads, heads.head_dim) == (8, 4, 256)
    assert (declaration.vocab_size, declaration.decoder.width) == (262208, 2304)
    assert _windows(declaration) == [4096] * 5 + [None]
    assert declaration.decoder.head is None and declaration.decoder.embedding_scale == 48.0


def test_multimodal_gemma_is_served_as_text_and_says_so() -> None:
    config: dict[str, Any] = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "boi_token_index": 1,
        "eoi_token_index": 2,
        "image_token_index": 3,
        "mm_tokens_per_image": 256,
        "text_config": {key: value for key, value in GEMMA.items() if key != "architectures"},
        "vision_config": {"hidden_size": 8},
    }
    declaration = declare(config)
    assert declaration.decoder == declare(GEMMA).decoder
    assert declaration.dtype == "bfloat16"
    assert any("only its text model" in note for note in declaration.notes)
    plain = {key: value for key, value in config.items() if key != "torch_dtype"}
    for key in ("dtype", "torch_dtype"):
        own = {**config["text_config"], key: "float16"}
        assert declare({**plain, "text_config": own}).dtype == "float16"
        assert declare({**config, "text_config": own}).dtype == "float16", "the text model's own comes first"
    with pytest.raises(ModelFileError, match="text_config"):
        declare({**config, "text_config": None})
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        declare({**config, "quantization_config": {"bits": 4}})


def test_windows_by_family() -> None:
    assert _windows(declare(LLAMA)) == [None, None]
    assert _windows(declare({**MISTRAL, "sliding_window": 32})) == [32, 32]
    assert _windows(declare({**MISTRAL, "sliding_window": None})) == [None, None]
    assert _windows(declare(MISTRAL)) == [4096, 4096], "what the first release left out"
    sliding = {"sliding_window": 32, "max_window_layers": 1}
    assert _windows(declare({**QWEN2, **sliding})) == [None, None], "use_sliding_window is off unless it is set"
    assert _windows(declare({**QWEN2, **sliding, "use_sliding_window": True})) == [None, 32]
    assert _windows(declare({**QWEN3, **sliding, "use_sliding_window": True, "max_window_layers": 0})) == [32, 32]
    kinds = ["sliding_attention", "full_attention"]
    assert _windows(declare({**QWEN3, **sliding, "use_sliding_window": True, "layer_types": kinds})) == [32, None]


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("llama", {"hidden_act": "relu"}, "hidden_act"),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ("llama", {"num_experts": 8}, "num_experts"),
    ("llama", {"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "rope_scaling.rope_type"),
    ("llama", {"rope_scaling": {"type": "ntk", "factor": 4.0}}, "rope_scaling.type"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "mscale": 1.1}}, "rope_parameters.mscale"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("llama", {"rope_parameters": {"full_attention": {}}}, "rope_parameters"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"sliding_window": 128}, "sliding_window"),
    ("llama", {"dtype": "float8_e4m3fn"}, "dtype"),
    ("llama", {"residual_multiplier": 0.22}, "residual_multiplier"),
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["linear_attention", "full_attention"]}, "layer_types"),
    ("qwen3", {"mlp_bias": True}, "mlp_bias"),
    ("gemma3", {"use_bidirectional_attention": True, "attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
    ("gemma3", {"hidden_activation": "relu"}, "hidden_activation"),
    ("gemma3", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters.rope_theta"),
)


@pytest.mark.parametrize("family, changes, name", REFUSED)
def test_what_is_not_implemented_is_refused_by_name(family: str, changes: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        declare({**ALL[family], **changes})
    assert name in caught.value.message and family in caught.value.message
    assert caught.value.message.endswith(".")


HUGE = 10**400
MALFORMED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("llama", {"hidden_size": HUGE}, "hidden_size"),
    ("llama", {"rms_norm_eps": HUGE}, "rms_norm_eps"),
    ("llama", {"num_hidden_layers": 4097}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 10**12}, "num_hidden_layers"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": HUGE}}, "rope_scaling.factor"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": "a"}}, "rope_theta"),
    ("qwen3", {"max_window_layers": HUGE}, "max_window_layers"),
    ("gemma3", {"hidden_size": HUGE}, "hidden_size"),
    ("gemma3", {"query_pre_attn_scalar": HUGE}, "query_pre_attn_scalar"),
    ("gemma3", {"rope_parameters": {"full_attention": "linear"}}, "rope_parameters.full_attention"),
    ("gemma3", {"rope_parameters": {"sliding_attention": 3}}, "rope_parameters.sliding_attention"),
    ("llama", {"hidden_size": None}, "hidden_size"),
    ("llama", {"hidden_size": "64"}, "hidden_size"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": True}, "num_hidden_layers"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ("llama", {"rope_theta": -1}, "rope_theta"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"head_dim": 15}, "head_dim"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ("llama", {"architectures": None}, "architectures"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window"),
    ("gemma3", {"sliding_window": None}, "sliding_window"),
    ("gemma3", {"layer_types": "full_attention"}, "layer_types"),
)


@pytest.mark.parametrize("family, changes, name", MALFORMED)
def test_what_makes_no_sense_is_named(family: str, changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        declare({**ALL[family], **changes})
    assert name in caught.value.message


def test_unknown_architecture_lists_those_there_are() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        declare({**LLAMA, "architectures": ["OPTForCausalLM"]})
    assert "OPTForCausalLM" in caught.value.message and "--supported" in caught.value.message


@pytest.mark.parametrize("family", ALL)
def test_inert_keys_and_switched_off_values_are_ignored(family: str) -> None:
    extra = {
        "use_cache": True,
        "transformers_version": "5.0",
        "bos_token_id": 1,
        "eos_token_id": [1, 2],
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "quantization_config": None,
        "some_future_switch": False,
        "rope_scaling": None,
    }
    assert declare({**ALL[family], **extra}) == declare(ALL[family])


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_published_and_saved_configurations_agree(family: str, tmp_path: Path) -> None:
    """A configuration as transformers writes it is read without complaint, and its tensors are all that is needed."""
    checkpoints.make_model(family).config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.setdefault("architectures", [next(iter(_architectures(family)))])
    declaration = declare(config)
    names = {part.tensor for weight in declaration.weights for part in weight.parts}
    model = checkpoints.make_model(family)
    expected = set(model.state_dict()) - ({"lm_head.weight"} if config["tie_word_embeddings"] else set())
    assert names == expected
    assert declaration.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def _architectures(family: str) -> list[str]:
    return ALL[family]["architectures"]


def test_declaring_needs_no_torch() -> None:
    code = "import sys, penstock.models.registry, penstock.loading.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_text_part_of_a_configuration_is_named_with_its_place() -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {**GEMMA, "hidden_size": "64"}}
    with pytest.raises(ModelFileError, match=r"config\.json has text_config\.hidden_size = '64'"):
        declare(config)
    config["text_config"] = {**GEMMA, "mixture": 3}
    with pytest.raises(UnsupportedModel, match=r"config\.json has text_config\.mixture = 3"):
        declare(config)
