"""GGUF's architectures as ours: what tensors are called, and what config.json says instead of metadata."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import UnsupportedModel
from penstock.loading import gguf_encoders as encoders
from penstock.loading import gguf_mixtures as mixtures
from penstock.loading import gguf_names as names
from penstock.loading.gguf import GgufFile
from penstock.loading.gguf_gemma4 import VARIED, gemma4
from penstock.loading.gguf_mixtures import Config, Further, turned
from penstock.loading.gguf_rope import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, longrope, rope_scaling, yarn
from penstock.loading.gguf_values import Values

_LARGEST_GEMMA3_LAYERS, _LARGEST_GEMMA2_LAYERS = 62, 46
# One layer in this many sees the whole context.
_GEMMA3_PATTERN, _OLMO3_PATTERN, _COHERE2_PATTERN = 6, 4, 4
# Of all published models of StarCoder2; files do not say it.
_STARCODER2_WINDOW = 4096
# Sizes that are those of a key head, and those where a part of a head turns.
_WHOLE_HEADS = ("attention.value_length", "rope.dimension_count")
_TURNED_IN_PART = ("attention.value_length",)
_RMS, _CENTRED = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
    **dict.fromkeys(("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling")),
}


_NO_GROUPS = dict.fromkeys(("num_key_value_heads", "head_dim"))
_BERT_KEYS = {"rms_norm_eps": "layer_norm_eps", **_NO_GROUPS, **dict.fromkeys(("rope_theta", "rope_scaling"))}
_NOMIC_BERT_KEYS = {"rms_norm_eps": "layer_norm_eps", "num_key_value_heads": None}
_MODERN_BERT_KEYS = {
    "rms_norm_eps": "norm_eps",
    "rope_theta": "global_rope_theta",
    "rope_scaling": None,
    **_NO_GROUPS,
}


def _nothing(_values: Values, _config: Config) -> dict[str, Any]:
    return {}


def _bias(values: Values, config: Config) -> dict[str, Any]:
    return {"attention_bias": True} if values.has_tensor("attn_q.bias") else {}


def _scaled_by(config: Config, largest: int, usual: int) -> int:
    """What scores of a Gemma are scaled by: no file says that it is width / heads in the one with `largest` layers."""
    is_largest = config["num_hidden_layers"] == largest
    return config["hidden_size"] // config["num_attention_heads"] if is_largest else usual


def _gemma2(values: Values, config: Config) -> dict[str, Any]:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": values.integer("attention.sliding_window", 4096),
        "query_pre_attn_scalar": _scaled_by(config, _LARGEST_GEMMA2_LAYERS, 256),
        "attn_logit_softcapping": values.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": values.number("final_logit_softcapping", 30.0),
    }


def _gemma3(values: Values, config: Config) -> dict[str, Any]:
    values.only("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    return {
        "rope_theta": values.number("rope.freq_base", values.number("rope.global.freq_base", 1e6)),
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": values.integer("attention.sliding_window"),
        "query_pre_attn_scalar": _scaled_by(config, _LARGEST_GEMMA3_LAYERS, config["head_dim"]),
        "rope_local_base_freq": values.number("rope.freq_base_swa", values.number("rope.local.freq_base", 10000.0)),
        "final_logit_softcapping": values.number("final_logit_softcapping", None),
    }


def _embedding_gemma(values: Values, config: Config) -> dict[str, Any]:
    return {**_gemma3(values, config), "use_bidirectional_attention": True}


def _granite(values: Values, config: Config) -> dict[str, Any]:
    return {
        **_bias(values, config),
        "embedding_multiplier": values.number("embedding_scale", 1.0),
        "residual_multiplier": values.number("residual_scale", 1.0),
        "attention_multiplier": values.number("attention.scale", config["head_dim"] ** -0.5),
        "logits_scaling": values.number("logit_scale", 1.0),
    }


def _granite_moe(values: Values, config: Config) -> dict[str, Any]:
    return {**_granite(values, config), **mixtures.mixtral(values, config)}


def _olmo2(values: Values, config: Config) -> dict[str, Any]:
    """OLMo 3 has this name, too, and a window. Positions are scaled in layers that have none."""
    window = values.integer("attention.sliding_window", 0)
    if not window:
        return {}
    theta = config["rope_theta"]
    local = {"rope_type": "default", "rope_theta": values.number("rope.freq_base_swa", theta)}
    full = rope_scaling(values, config) or {"rope_type": "default"}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": window,
        "layer_types": values.kinds_of_layers(config["num_hidden_layers"], _OLMO3_PATTERN),
        "rope_parameters": {"sliding_attention": local, "full_attention": {**full, "rope_theta": theta}},
    }


def _glm4(values: Values, config: Config) -> dict[str, Any]:
    # Those that also read images, whose heads turn otherwise.
    values.lacks("rope.dimension_sections")
    biased = values.has_tensor("attn_q.bias") or values.has_tensor("attn_qkv.bias")
    return {"attention_bias": biased, **turned(values, config)}


def _phi3(values: Values, config: Config) -> dict[str, Any]:
    """Phi-4 has a window of 0, which is none."""
    return {
        **turned(values, config),
        "sliding_window": values.integer("attention.sliding_window") or None,
        "rope_scaling": longrope(values, config) or rope_scaling(values, config),
    }


def _ministral3(values: Values, config: Config) -> dict[str, Any]:
    """Or Mistral Small 3.1, whose queries are worth the same at all positions."""
    beta = values.number("attention.temperature_scale", 0.0)
    if not beta:
        return {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    rope = yarn(values)
    values.only("attention.temperature_length", rope["original_max_position_embeddings"])
    return {"rope_parameters": {**rope, "rope_theta": config["rope_theta"], "llama_4_scaling_beta": beta}}


def _cohere2(values: Values, config: Config) -> dict[str, Any]:
    return {
        "sliding_window": values.integer("attention.sliding_window"),
        "layer_types": values.kinds_of_layers(config["num_hidden_layers"], _COHERE2_PATTERN),
        "logit_scale": values.number("logit_scale"),
    }


def _starcoder2(values: Values, _config: Config) -> dict[str, Any]:
    window = values.integer("attention.sliding_window", _STARCODER2_WINDOW)
    return {"sliding_window": window, "use_bias": values.has_tensor("attn_q.bias")}


def _gpt_neox(values: Values, config: Config) -> dict[str, Any]:
    """The converter puts queries of all heads first, then keys, then values."""
    return {
        **turned(values, config),
        "use_parallel_residual": values.flag("use_parallel_residual", True),
        "qkv_by_head": False,
    }


def _gpt2(_values: Values, _config: Config) -> dict[str, Any]:
    """The converter writes matrices as [outputs, inputs]."""
    return {"matrices_across": False}


@dataclass(frozen=True, slots=True)
class Family:
    """What a GGUF architecture is among ours.

    Attributes:
        architecture: as config.json names it.
        block: names of a block's tensors; see `gguf_names`.
        further: what config.json says besides what all have.
        paired: rows of query and key heads stand beside the one that they turn with, otherwise than in a checkpoint.
        shifted: norms have 1 added.
        sizes: names of values that must be a key head's number of columns.
        eps: name of what norms add.
        keys: names in config.json that are not what most families call them; None: there is no such value.
        whole: names of tensors outside blocks; layers: what those of blocks begin with, before the layer's number.
        factors: names of tensors that config.json says, too.
        varied: names of values that may differ from layer to layer; what config.json says of them is `further`'s.
    """

    architecture: str
    block: Mapping[str, str]
    further: Further = _bias
    paired: bool = False
    shifted: bool = False
    sizes: tuple[str, ...] = _WHOLE_HEADS
    eps: str = _RMS
    keys: Mapping[str, str | None] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=lambda: names.WHOLE)
    layers: str = names.LAYERS
    factors: tuple[str, ...] = (ROPE_FACTORS,)
    varied: tuple[str, ...] = ()


FAMILIES = {
    "llama": Family("LlamaForCausalLM", names.BLOCK, paired=True),
    "mistral3": Family("Ministral3ForCausalLM", names.BLOCK, _ministral3, paired=True),
    "qwen2": Family("Qwen2ForCausalLM", names.BLOCK, _nothing),
    "qwen2vl": Family("Qwen2ForCausalLM", names.BLOCK, _nothing),
    "qwen2moe": Family("Qwen2MoeForCausalLM", names.QWEN2_MOE, mixtures.qwen2_moe),
    "qwen3": Family("Qwen3ForCausalLM", names.BLOCK),
    "qwen3vl": Family("Qwen3ForCausalLM", names.BLOCK),
    "qwen3moe": Family("Qwen3MoeForCausalLM", names.MIXTURE, mixtures.qwen3_moe),
    "qwen3vlmoe": Family("Qwen3MoeForCausalLM", names.MIXTURE, mixtures.qwen3_moe),
    "deepseek2": Family("DeepseekV2ForCausalLM", names.DEEPSEEK2, mixtures.deepseek2, sizes=()),
    "mistral4": Family("Mistral4ForCausalLM", names.DEEPSEEK2, mixtures.mistral4, sizes=()),
    "gemma2": Family("Gemma2ForCausalLM", names.GEMMA, _gemma2, shifted=True),
    "gemma3": Family("Gemma3ForCausalLM", names.GEMMA, _gemma3, shifted=True),
    "gemma4": Family("Gemma4ForCausalLM", names.GEMMA4, gemma4, whole=names.GEMMA4_WHOLE, varied=VARIED),
    "phi3": Family("Phi3ForCausalLM", names.PHI3, _phi3, sizes=_TURNED_IN_PART, factors=(LONG_FACTORS, SHORT_FACTORS)),
    "granite": Family("GraniteForCausalLM", names.BLOCK, _granite, paired=True),
    "granitemoe": Family("GraniteMoeForCausalLM", names.GRANITE_MOE, _granite_moe, paired=True),
    "smollm3": Family("SmolLM3ForCausalLM", names.BLOCK, paired=True),
    "olmo2": Family("Olmo2ForCausalLM", names.OLMO2, _olmo2),
    "olmoe": Family("OlmoeForCausalLM", names.MIXTURE, mixtures.olmoe),
    "chatglm": Family("GlmForCausalLM", names.CHATGLM, _glm4, sizes=_TURNED_IN_PART),
    "glm4": Family("Glm4ForCausalLM", names.GLM4, _glm4, sizes=_TURNED_IN_PART),
    "glm4moe": Family("Glm4MoeForCausalLM", names.GLM4_MOE, mixtures.glm4_moe, sizes=_TURNED_IN_PART),
    "gpt-oss": Family("GptOssForCausalLM", names.GPT_OSS, mixtures.gpt_oss),
    "minimax-m2": Family("MiniMaxM2ForCausalLM", names.MINIMAX, mixtures.minimax, sizes=_TURNED_IN_PART),
    "cohere2": Family(
        "Cohere2ForCausalLM", names.BLOCK, _cohere2, eps=_CENTRED, keys={"rms_norm_eps": "layer_norm_eps"}
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM", names.STARCODER2, _starcoder2, eps=_CENTRED, keys={"rms_norm_eps": "norm_epsilon"}
    ),
    "gptneox": Family(
        "GPTNeoXForCausalLM",
        names.GPT_NEOX,
        _gpt_neox,
        sizes=_TURNED_IN_PART,
        eps=_CENTRED,
        keys={"rms_norm_eps": "layer_norm_eps"},
        whole=names.GPT_NEOX_WHOLE,
        layers=names.GPT_NEOX_LAYERS,
    ),
    "bert": Family(
        "BertModel",
        names.BERT,
        encoders.bert,
        eps=_CENTRED,
        keys=_BERT_KEYS,
        whole=names.BERT_WHOLE,
        layers=names.BERT_LAYERS,
    ),
    "nomic-bert": Family(
        "NomicBertModel",
        names.NOMIC_BERT,
        encoders.nomic_bert,
        eps=_CENTRED,
        keys=_NOMIC_BERT_KEYS,
        whole=names.NOMIC_BERT_WHOLE,
        layers=names.NOMIC_BERT_LAYERS,
    ),
    "modern-bert": Family(
        "ModernBertModel",
        names.MODERN_BERT,
        encoders.modern_bert,
        eps=_CENTRED,
        keys=_MODERN_BERT_KEYS,
        whole=names.MODERN_BERT_WHOLE,
    ),
    encoders.EMBEDDING_GEMMA: Family(
        "Gemma3TextModel",
        names.GEMMA,
        _embedding_gemma,
        shifted=True,
        factors=(ROPE_FACTORS, *(f"{dense}.weight" for dense in encoders.DENSE)),
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        names.GPT2,
        _gpt2,
        sizes=(),
        eps=_CENTRED,
        keys=_GPT2_KEYS,
        whole=names.GPT2_WHOLE,
        layers=names.GPT2_LAYERS,
    ),
}
# Files of Mixtral say that they are of Llama, with experts.
MIXTRAL = Family("MixtralForCausalLM", names.MIXTRAL, mixtures.mixtral, paired=True)


def family_of(file: GgufFile) -> tuple[str, Family]:
    """The file's architecture, and what it is among ours. Raises UnsupportedModel."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedModel(
            f"{file.path.name} is of the GGUF architecture {reprlib.repr(name)}, which is not implemented; these are: "
            f"{', '.join(FAMILIES)}."
        )
    family = FAMILIES[name]
    experts = Values(file, name).integer("expert_count", 0)
    if experts and name == "llama":
        return name, MIXTRAL
    if experts and "ffn_gate_inp" not in family.block:
        raise UnsupportedModel(
            f"{file.path.name} has {experts} experts in each layer, which is not implemented for {name}."
        )
    return name, family
