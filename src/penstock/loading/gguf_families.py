"""GGUF's architectures as ours: what a block's tensors are called, and what config.json says instead of metadata."""

import reprlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.gguf import GgufFile, Texts

# The tensors of a block; those of all experts have {} for the expert.
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Norms behind attention and MLP; Gemma calls the MLP's own one otherwise.
_BEHIND = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA_BLOCK = {**_BLOCK, **_BEHIND, "ffn_norm": "pre_feedforward_layernorm"}
_GLM4_BLOCK = {
    **_BLOCK,
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}


def _experts(layer: str, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> dict[str, str]:
    names = zip(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), parts, strict=True)
    return {theirs: f"{layer}.experts.{{}}.{ours}" for theirs, ours in names}


_MOE_BLOCK = {**_BLOCK, **_experts("mlp"), "ffn_gate_inp": "mlp.gate"}
_QWEN2_MOE_BLOCK = {
    **_MOE_BLOCK,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_GLM4_MOE_BLOCK = {
    **_MOE_BLOCK,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
_SPARSE_PARTS = ("w1", "w3", "w2")
_MIXTRAL_BLOCK = {**_BLOCK, **_experts("block_sparse_moe", _SPARSE_PARTS), "ffn_gate_inp": "block_sparse_moe.gate"}
_MINIMAX_BLOCK = {**_MIXTRAL_BLOCK, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"}
_GRANITE_MOE_BLOCK = {**_BLOCK, **_experts("block_sparse_moe"), "ffn_gate_inp": "block_sparse_moe.router.layer"}
_GPT_OSS_BLOCK = {
    **_MOE_BLOCK,
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
_LARGEST_GEMMA3_LAYERS, _LARGEST_GEMMA2_LAYERS = 62, 46
# One layer in this many sees the whole context.
_GEMMA3_PATTERN = 6
# How scores of experts are made of logits.
_BY_SOFTMAX, _BY_SIGMOID = 1, 2
_ABSENT = object()


class Values:
    """Metadata of an architecture, taken by name and type."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def integer(self, name: str, default: Any = _ABSENT) -> Any:
        """A whole number; one for each layer only where all are the same."""
        value = self._take(name, default)
        if isinstance(value, array) and len(set(value)) == 1:
            value = value[0]
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.refused(name, "a whole number")
        return value

    def number(self, name: str, default: Any = _ABSENT) -> Any:
        """A number, whole or not."""
        value = self._take(name, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise self.refused(name, "a number")
        return value

    def text(self, name: str, default: Any = _ABSENT) -> Any:
        """A text, such as a name."""
        value = self._take(name, default)
        if value is not default and not isinstance(value, str):
            raise self.refused(name, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false, by its name."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false")
        return value

    def has_tensor(self, name: str) -> bool:
        """Whether the first layer has a tensor, by the name within its block."""
        return f"blk.0.{name}" in self._file.tensors

    def _take(self, name: str, default: Any) -> Any:
        value = self._file.metadata.get(f"{self._architecture}.{name}", default)
        if value is _ABSENT:
            raise ModelFileError(
                f"{self._file.path.name} has no {self._architecture}.{name}, which its architecture needs."
            )
        return value

    def refused(self, name: str, expected: str) -> UnsupportedModel:
        """The error for a value that is not implemented."""
        value = self._file.metadata.get(f"{self._architecture}.{name}")
        shown = f"an array of {len(value)}" if isinstance(value, (array, Texts)) else reprlib.repr(value)
        return UnsupportedModel(
            f"{self._file.path.name} has {self._architecture}.{name} = {shown}; implemented: {expected}."
        )


Config = Mapping[str, Any]
Further = Callable[[Values, Config], dict[str, Any]]
"""(metadata, what config.json says so far) → what it says besides, or instead."""


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
    if values.integer("attention.sliding_window_pattern", _GEMMA3_PATTERN) != _GEMMA3_PATTERN:
        raise values.refused("attention.sliding_window_pattern", str(_GEMMA3_PATTERN))
    return {
        "rope_theta": values.number("rope.freq_base", values.number("rope.global.freq_base", 1e6)),
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": values.integer("attention.sliding_window"),
        "query_pre_attn_scalar": _scaled_by(config, _LARGEST_GEMMA3_LAYERS, config["head_dim"]),
        "rope_local_base_freq": values.number("rope.freq_base_swa", values.number("rope.local.freq_base", 10000.0)),
        "final_logit_softcapping": values.number("final_logit_softcapping", None),
    }


def _granite(values: Values, config: Config) -> dict[str, Any]:
    return {
        **_bias(values, config),
        "embedding_multiplier": values.number("embedding_scale", 1.0),
        "residual_multiplier": values.number("residual_scale", 1.0),
        "attention_multiplier": values.number("attention.scale", config["head_dim"] ** -0.5),
        "logits_scaling": values.number("logit_scale", 1.0),
    }


def _granite_moe(values: Values, config: Config) -> dict[str, Any]:
    return {**_granite(values, config), **_mixtral(values, config)}


def _mixtral(values: Values, _config: Config) -> dict[str, Any]:
    return {"num_local_experts": values.integer("expert_count"), **_chosen(values)}


def _chosen(values: Values, gating: int = _BY_SOFTMAX) -> dict[str, Any]:
    """How many experts a row has, where the file says of the rest what the family has."""
    if values.integer("expert_gating_func", gating) != gating:
        raise values.refused("expert_gating_func", str(gating))
    if gating == _BY_SOFTMAX and values.number("expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise values.refused("expert_weights_scale", "1")
    return {"num_experts_per_tok": values.integer("expert_used_count")}


def _qwen3_moe(values: Values, _config: Config) -> dict[str, Any]:
    return {
        **_chosen(values),
        "num_experts": values.integer("expert_count"),
        "moe_intermediate_size": values.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _qwen2_moe(values: Values, config: Config) -> dict[str, Any]:
    shared = values.integer("expert_shared_feed_forward_length")
    return {**_qwen3_moe(values, config), "norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def _olmoe(values: Values, _config: Config) -> dict[str, Any]:
    return {**_chosen(values), "num_experts": values.integer("expert_count"), "norm_topk_prob": False}


def _olmo2(values: Values, _config: Config) -> dict[str, Any]:
    if values.integer("attention.sliding_window", 0):
        # OLMo 3 has this name, too, and the file does not say which positions it scales.
        raise values.refused("attention.sliding_window", "none; serve the checkpoint that it was made from")
    return {}


def _glm4(values: Values, config: Config) -> dict[str, Any]:
    return {**_bias(values, config), **_turned(values, config)}


def _turned(values: Values, config: Config) -> dict[str, Any]:
    return {"partial_rotary_factor": values.integer("rope.dimension_count", config["head_dim"]) / config["head_dim"]}


def _glm4_moe(values: Values, config: Config) -> dict[str, Any]:
    """A file counts the layers that predict further tokens among its blocks."""
    layers = config["num_hidden_layers"] - values.integer("nextn_predict_layers", 0)
    return {
        **_glm4(values, config),
        **_chosen(values, _BY_SIGMOID),
        "num_hidden_layers": layers,
        "use_qk_norm": values.has_tensor("attn_q_norm.weight"),
        "n_routed_experts": values.integer("expert_count"),
        "n_shared_experts": values.integer("expert_shared_count"),
        "moe_intermediate_size": values.integer("expert_feed_forward_length"),
        "first_k_dense_replace": values.integer("leading_dense_block_count", 0),
        "norm_topk_prob": values.flag("expert_weights_norm", True),
        "routed_scaling_factor": values.number("expert_weights_scale", 1.0),
        "n_group": values.integer("expert_group_count", 1),
        "topk_group": values.integer("expert_group_used_count", 1),
    }


def _minimax(values: Values, config: Config) -> dict[str, Any]:
    return {
        **_chosen(values, _BY_SIGMOID),
        "num_local_experts": values.integer("expert_count"),
        "intermediate_size": values.integer("expert_feed_forward_length", config["intermediate_size"]),
        "rotary_dim": values.integer("rope.dimension_count", config["head_dim"]),
    }


def _gpt_oss(values: Values, config: Config) -> dict[str, Any]:
    if values.text("rope.scaling.type", "none") != "yarn":
        raise values.refused("rope.scaling.type", "yarn")
    return {
        **_chosen(values),
        "num_local_experts": values.integer("expert_count"),
        "intermediate_size": values.integer("expert_feed_forward_length", config["intermediate_size"]),
        "sliding_window": values.integer("attention.sliding_window"),
        "attention_bias": values.has_tensor("attn_q.bias"),
        "experts_apart": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": values.number("rope.scaling.factor"),
            "original_max_position_embeddings": values.integer("rope.scaling.original_context_length"),
            "beta_fast": values.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": values.number("rope.scaling.yarn_beta_slow", 1.0),
            "truncate": False,
        },
    }


@dataclass(frozen=True, slots=True)
class Family:
    """What a GGUF architecture is among ours.

    Attributes:
        architecture: as config.json names it.
        block: names of a block's tensors.
        further: what config.json says besides what all have.
        paired: rows of query and key heads stand beside the one that they turn with, otherwise than in a checkpoint.
        shifted: norms have 1 added.
        partial: a part of each head may turn.
    """

    architecture: str
    block: Mapping[str, str]
    further: Further = _bias
    paired: bool = False
    shifted: bool = False
    partial: bool = False


FAMILIES = {
    "llama": Family("LlamaForCausalLM", _BLOCK, paired=True),
    "qwen2": Family("Qwen2ForCausalLM", _BLOCK, _nothing),
    "qwen2vl": Family("Qwen2ForCausalLM", _BLOCK, _nothing),
    "qwen2moe": Family("Qwen2MoeForCausalLM", _QWEN2_MOE_BLOCK, _qwen2_moe),
    "qwen3": Family("Qwen3ForCausalLM", _BLOCK),
    "qwen3vl": Family("Qwen3ForCausalLM", _BLOCK),
    "qwen3moe": Family("Qwen3MoeForCausalLM", _MOE_BLOCK, _qwen3_moe),
    "gemma2": Family("Gemma2ForCausalLM", _GEMMA_BLOCK, _gemma2, shifted=True),
    "gemma3": Family("Gemma3ForCausalLM", _GEMMA_BLOCK, _gemma3, shifted=True),
    "granite": Family("GraniteForCausalLM", _BLOCK, _granite, paired=True),
    "granitemoe": Family("GraniteMoeForCausalLM", _GRANITE_MOE_BLOCK, _granite_moe, paired=True),
    "smollm3": Family("SmolLM3ForCausalLM", _BLOCK, paired=True),
    "olmo2": Family("Olmo2ForCausalLM", {**_BLOCK, **_BEHIND}, _olmo2),
    "olmoe": Family("OlmoeForCausalLM", _MOE_BLOCK, _olmoe),
    "glm4": Family("Glm4ForCausalLM", _GLM4_BLOCK, _glm4, partial=True),
    "glm4moe": Family("Glm4MoeForCausalLM", _GLM4_MOE_BLOCK, _glm4_moe, partial=True),
    "gpt-oss": Family("GptOssForCausalLM", _GPT_OSS_BLOCK, _gpt_oss),
    "minimax-m2": Family("MiniMaxM2ForCausalLM", _MINIMAX_BLOCK, _minimax, partial=True),
}
# Files of Mixtral say that they are of Llama, with experts.
MIXTRAL = Family("MixtralForCausalLM", _MIXTRAL_BLOCK, _mixtral, paired=True)


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
