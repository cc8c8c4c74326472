"""Text models within checkpoints that also read images: their `text_config`, and nothing of what sees."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.core.errors import ModelFileError
from penstock.models import deepseek, gemma3, gemma4, ministral3, mistral, qwen, qwen_moe
from penstock.models.config import ConfigReader, read_dtype
from penstock.models.declaration import ModelDeclaration

# What images and sounds become, and where they stand in a prompt.
_OF_IMAGES = (
    "audio_config",
    "audio_ms_per_token",
    "audio_soft_tokens_per_image",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "image_token_id",
    "image_token_index",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_soft_tokens_per_image",
    "vision_soft_tokens_per_video_frame",
    "vision_start_token_id",
    "vision_token_id",
)
_NOTE = "This checkpoint also reads images; only its text model is served."


class TextPart(NamedTuple):
    """Of a family that also reads images.

    Attributes:
        models: what it is known by.
        declare: reads the text model's configuration, and where in config.json that is.
        unused: patterns of the names of tensors that see.
        tied: whether embedding and head are one where a file does not say it.
        flat: whether older files have the text model's values beside those of images.
        defaults: what text models are where a file does not say it, otherwise than those of their own family.
        alone: makes config.json of the text model alone of what the file says of it; None: that is not written.
    """

    models: str
    declare: Callable[[Mapping[str, Any], str], ModelDeclaration]
    unused: tuple[str, ...]
    tied: bool = False
    flat: bool = False
    defaults: Mapping[str, Any] = MappingProxyType({})
    alone: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None


# Of Mistral, text models are of several families; their configuration says which, and none is the first.
_MISTRALS = {"mistral": mistral.declare, "ministral3": ministral3.declare, "mistral4": deepseek.declare_mistral4}


def _mistral(config: Mapping[str, Any], path: str) -> ModelDeclaration:
    kind = ConfigReader(config, "mistral3", path).choice("model_type", tuple(_MISTRALS), "mistral")
    return _MISTRALS[kind](config, path)


_TOWER = ("*vision_tower.*", "*multi_modal_projector.*")
_TOWERS = ("*vision_tower.*", "*audio_tower.*", "*embed_vision.*", "*embed_audio.*", "*vision_embedder.*")
_VISUAL = ("*visual.*",)
_QWEN_2_5 = {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_window_layers": 80}
_QWEN_3 = {"rope_theta": 5e5, "num_key_value_heads": 32, "max_position_embeddings": 128000}
_QWEN_3_MOE = {
    **_QWEN_3,
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": True,
}
TEXT_PARTS: dict[str, TextPart] = {
    "Gemma3ForConditionalGeneration": TextPart("Gemma 3", gemma3.declare, _TOWER, tied=True),
    "Gemma4ForConditionalGeneration": TextPart("Gemma 4", gemma4.declare, _TOWERS, tied=True, alone=gemma4.alone),
    "Gemma4UnifiedForConditionalGeneration": TextPart(
        "Gemma 4 12B", gemma4.declare_unified, _TOWERS, tied=True, alone=gemma4.alone_of_unified
    ),
    "Mistral3ForConditionalGeneration": TextPart(
        "Mistral Small 3.1, 3.2, Ministral 3, Mistral 4", _mistral, _TOWER, tied=True
    ),
    "Qwen2_5_VLForConditionalGeneration": TextPart(
        "Qwen2.5-VL", qwen.declare_qwen2, _VISUAL, flat=True, defaults=_QWEN_2_5
    ),
    "Qwen3VLForConditionalGeneration": TextPart("Qwen3-VL", qwen.declare_qwen3, _VISUAL, defaults=_QWEN_3),
    "Qwen3VLMoeForConditionalGeneration": TextPart(
        "Qwen3-VL-MoE", qwen_moe.declare_qwen3, _VISUAL, defaults=_QWEN_3_MOE
    ),
}


def text_of(architecture: str, part: TextPart) -> Callable[[Mapping[str, Any]], ModelDeclaration]:
    """What declares the text part of an architecture from the content of config.json."""

    def declare(config: Mapping[str, Any]) -> ModelDeclaration:
        within = not part.flat or config.get("text_config") is not None
        values, path = (_text_config(architecture, config, part), "text_config.") if within else (config, "")
        text = {key: value for key, value in values.items() if key not in _OF_IMAGES}
        inner = part.declare(_for_text({**part.defaults, **text}), path)
        unused = (*inner.unused_tensors, *part.unused)
        return replace(inner, architecture=architecture, unused_tensors=unused, notes=(*inner.notes, _NOTE))

    return declare


def text_alone(architecture: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """config.json of the text model alone, of a wrapper's; None where it is no wrapper, or that is not written."""
    part = TEXT_PARTS.get(architecture)
    if part is None or part.alone is None:
        return None
    text = _text_config(architecture, config, part)
    # Either may name tokens that end an output, and both count.
    ends = dict.fromkeys(token for said in (config, text) for token in _listed(said.get("eos_token_id")))
    text = {key: value for key, value in text.items() if key not in _OF_IMAGES}
    return part.alone({**text, **({"eos_token_id": list(ends)} if ends else {})})


def _listed(ids: Any) -> list[Any]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _text_config(architecture: str, config: Mapping[str, Any], part: TextPart) -> Mapping[str, Any]:
    """The text part's values, and those that a file has once for all its parts."""
    reader = ConfigReader(config, architecture)
    text = reader.mapping("text_config")
    if text is None:
        raise ModelFileError(f"config.json has no text_config, which {architecture} models need.")
    tied = reader.flag("tie_word_embeddings", part.tied)
    if part.flat:
        # Where such files say it within, they may leave it out here.
        tied = tied or ConfigReader(text, architecture, "text_config.").flag("tie_word_embeddings", False)
    dtype = read_dtype(reader)
    # Some files have values of the text part once more.
    again = (key for key, value in text.items() if config.get(key) == value)
    reader.ignore("architectures", "model_type", *_OF_IMAGES, *again)
    reader.refuse_unread()
    own_dtype = text.get("dtype") or text.get("torch_dtype") or dtype
    return {**text, "tie_word_embeddings": tied, "dtype": own_dtype}


def _for_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without the three positions of a piece of an image: those of a token of text are all the same."""
    found = dict(values)
    for key in ("rope_scaling", "rope_parameters"):
        given = found.get(key)
        if isinstance(given, Mapping):
            found[key] = {
                name: "default" if value == "mrope" else value
                for name, value in given.items()
                if name not in ("mrope_section", "mrope_interleaved")
            }
    return found
