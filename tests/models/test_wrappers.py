"""The text part of checkpoints that also read images gives the logits that transformers has for text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.gemma3 import Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma4 import Gemma4Config, Gemma4ForConditionalGeneration
from transformers.models.gemma4_unified import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration
from transformers.models.mistral3 import Mistral3Config, Mistral3ForConditionalGeneration
from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl_moe import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.models.registry import declare
from support import checkpoints
from support.families import BY_FAMILY
from support.stepping import all_logits, make_stepper

_TEXT: dict[str, Any] = {
    "vocab_size": checkpoints.VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-2,
    "bos_token_id": checkpoints.BOS,
    "eos_token_id": checkpoints.EOS,
    "pad_token_id": 0,
}
_QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
_TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_IMAGE_TOKENS = {"image_token_id": 300, "video_token_id": 301}
_MROPE = {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 3, 3]}
_GEMMA4 = {
    "head_dim": 24,
    "global_head_dim": 32,
    "num_hidden_layers": 4,
    "sliding_window": 29,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
}
_PIXTRAL: dict[str, Any] = {
    "vision_config": {"model_type": "pixtral", **_TOWER, "head_dim": 8, "image_size": 56, "patch_size": 14},
    "tie_word_embeddings": False,
    "image_token_index": 300,
}
# The class, that of its configuration, and values of its text part and of the rest.
WRAPPERS: dict[str, tuple[type[PreTrainedModel], type[PreTrainedConfig], dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": (
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLConfig,
        {"rope_parameters": _MROPE, "use_sliding_window": True, "sliding_window": 45, "max_window_layers": 1},
        {"vision_config": {**_QWEN_VISION, "fullatt_block_indexes": [0]}, **_IMAGE_TOKENS},
    ),
    "qwen3_vl": (
        Qwen3VLForConditionalGeneration,
        Qwen3VLConfig,
        {"head_dim": 24, "rope_parameters": {**_MROPE, "mrope_section": [4, 4, 4], "mrope_interleaved": True}},
        {"vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0]}, **_IMAGE_TOKENS},
    ),
    "qwen3_vl_moe": (
        Qwen3VLMoeForConditionalGeneration,
        Qwen3VLMoeConfig,
        {
            "head_dim": 24,
            "rope_parameters": {**_MROPE, "mrope_section": [4, 4, 4], "mrope_interleaved": True},
            "num_experts": 8,
            "num_experts_per_tok": 3,
            # Twice as many are as many as there are columns.
            "moe_intermediate_size": 32,
            "mlp_only_layers": [1],
        },
        {"vision_config": {**_QWEN_VISION, "deepstack_visual_indexes": [0]}, **_IMAGE_TOKENS},
    ),
    "mistral3": (
        Mistral3ForConditionalGeneration,
        Mistral3Config,
        {"model_type": "mistral", "head_dim": 24, "sliding_window": None, "rope_theta": 5000.0},
        _PIXTRAL,
    ),
    "ministral3": (
        Mistral3ForConditionalGeneration,
        Mistral3Config,
        {"model_type": "ministral3", "head_dim": 24, "rope_parameters": BY_FAMILY["ministral3"][1]["rope_parameters"]},
        _PIXTRAL,
    ),
    "mistral4": (
        Mistral3ForConditionalGeneration,
        Mistral3Config,
        {"model_type": "mistral4", **BY_FAMILY["mistral4"][1]},
        _PIXTRAL,
    ),
    "gemma3": (
        Gemma3ForConditionalGeneration,
        Gemma3Config,
        {"model_type": "gemma3_text", "head_dim": 24, "sliding_window": 29, "query_pre_attn_scalar": 40},
        {
            "vision_config": {"model_type": "siglip_vision_model", **_TOWER, "image_size": 56, "patch_size": 14},
            "image_token_index": 300,
            "mm_tokens_per_image": 16,
        },
    ),
    "gemma4": (
        Gemma4ForConditionalGeneration,
        Gemma4Config,
        {
            **_GEMMA4,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": checkpoints.VOCAB_SIZE,
            "num_kv_shared_layers": 1,
        },
        {
            "vision_config": {**_TOWER, "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 64},
            "audio_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "subsampling_conv_channels": [8, 4],
                "output_proj_dims": 16,
            },
            **_IMAGE_TOKENS,
        },
    ),
    "gemma4_unified": (
        Gemma4UnifiedForConditionalGeneration,
        Gemma4UnifiedConfig,
        {**_GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {"vision_config": {"mm_posemb_size": 16}, "audio_config": {}, **_IMAGE_TOKENS},
    ),
}
LENGTHS = (131, 1, 17, 48)


def make(name: str, path: Path) -> PreTrainedModel:
    """transformers' model, which is also written to `path`."""
    model_class, config_class, text, rest = WRAPPERS[name]
    torch.manual_seed(0)
    config = config_class(text_config={**_TEXT, **text}, **rest)
    model = model_class._from_config(config, attn_implementation="eager")
    checkpoints.randomise(model, torch.Generator().manual_seed(0), unit_offset=float(name == "gemma3"))
    model.eval().save_pretrained(path)
    checkpoints.write_tokenizer(path)
    return model


@pytest.mark.parametrize("name", WRAPPERS)
def test_logits_equal_reference(name: str, tmp_path: Path) -> None:
    model = make(name, tmp_path)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(4, 299, (length,), generator=generator).tolist() for length in LENGTHS]
    found = all_logits(make_stepper(tmp_path), prompts, 16)
    for mine, prompt in zip(found, prompts, strict=True):
        assert (mine - checkpoints.reference_logits(model, prompt)).abs().max() <= 1e-4


def test_the_flat_configuration_of_older_files(tmp_path: Path) -> None:
    make("qwen2_5_vl", tmp_path)
    newer = json.loads((tmp_path / "config.json").read_text())
    text = newer["text_config"]
    flat = {**text, **{key: value for key, value in newer.items() if key not in ("text_config", "model_type")}}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
    flat["rope_theta"] = flat.pop("rope_parameters")["rope_theta"]
    assert declare(flat).decoder == declare(newer).decoder


def test_values_that_change_what_text_becomes_are_refused(tmp_path: Path) -> None:
    make("mistral3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ModelFileError, match="no text_config, which Mistral3ForConditionalGeneration models need"):
        declare({key: value for key, value in config.items() if key != "text_config"})
    scaled = {**config["text_config"], "rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}}
    with pytest.raises(UnsupportedModel, match="llama_4_scaling_beta"):
        declare({**config, "text_config": scaled})
    with pytest.raises(UnsupportedModel, match=r"text_config\.model_type = 'llama'.*implemented: mistral, ministral3,"):
        declare({**config, "text_config": {**config["text_config"], "model_type": "llama"}})
    with pytest.raises(UnsupportedModel, match=r"text_config\.layer_scalar"):
        declare({**config, "text_config": {**config["text_config"], "layer_scalar": 2.0}})


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_a_file_leaves_out_is_what_transformers_takes(name: str) -> None:
    model_class, config_class, own, _ = WRAPPERS[name]
    needed = ("vocab_size", "intermediate_size", "num_hidden_layers")
    text = {key: _TEXT[key] for key in needed} | {key: own[key] for key in ("model_type",) if key in own}
    # As many heads as any family has KV heads where nothing says how many.
    text |= {"hidden_size": 128, "num_attention_heads": 32}
    bare = {"architectures": [model_class.__name__], "text_config": text}
    assert declare(bare) == declare(
        {**config_class(text_config=text).to_dict(), "architectures": bare["architectures"]}
    )


def test_where_embedding_and_head_are_said_to_be_one() -> None:
    """Qwen2.5-VL says it in either place; elsewhere the outer one is meant."""
    text = {key: value for key, value in _TEXT.items() if not key.endswith("token_id")}

    def tied(name: str, outer: dict[str, Any], inner: dict[str, Any]) -> bool:
        return declare({"architectures": [name], "text_config": {**text, **inner}, **outer}).decoder.head is None

    yes, no = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
    qwen, mistral = "Qwen2_5_VLForConditionalGeneration", "Mistral3ForConditionalGeneration"
    assert [tied(qwen, *each) for each in ((yes, no), (no, yes), ({}, yes), ({}, {}))] == [True, True, True, False]
    assert [tied(mistral, *each) for each in ((yes, no), (no, yes), ({}, no), ({}, {}))] == [True, False, True, True]


def test_what_published_files_say_of_images_and_sounds(tmp_path: Path) -> None:
    make("gemma4", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    said = {"vision_soft_tokens_per_image": 280, "audio_soft_tokens_per_image": 188, "audio_ms_per_token": 40}
    assert declare({**config, **said}) == declare(config)


def test_values_that_files_have_twice() -> None:
    text = {**_TEXT, "image_token_id": 300, "vision_start_token_id": 301}
    config = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "text_config": text}
    again = {key: _TEXT[key] for key in ("hidden_size", "num_hidden_layers", "rms_norm_eps")}
    assert declare({**config, **again}) == declare(config)
    with pytest.raises(UnsupportedModel, match="hidden_size = 65"):
        declare({**config, **again, "hidden_size": 65})
