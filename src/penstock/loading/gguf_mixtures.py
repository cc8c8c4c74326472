"""What config.json says of experts, and of latent attention, instead of a GGUF file's metadata."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.loading.gguf_rope import yarn
from penstock.loading.gguf_values import Values

Config = Mapping[str, Any]
Further = Callable[[Values, Config], dict[str, Any]]
"""(metadata, what config.json says so far) → what it says besides, or instead."""

# How scores of experts are made of logits.
_BY_SOFTMAX, _BY_SIGMOID = 1, 2
# Of DeepSeek's models, which had groups before files said so: by number of experts, groups and how many a row has.
_GROUPS = {256: (8, 4), 160: (8, 3)}
# How much more queries of Mistral 4 are worth at later positions, which files do not say.
_MISTRAL4_BETA = 0.1


def turned(values: Values, config: Config) -> dict[str, Any]:
    """Of the part of each head that turns."""
    return {"partial_rotary_factor": values.integer("rope.dimension_count", config["head_dim"]) / config["head_dim"]}


def _chosen(values: Values, gating: int = _BY_SOFTMAX) -> dict[str, Any]:
    """How many experts a row has, where the file says of the rest what the family has."""
    values.only("expert_gating_func", gating)
    if gating == _BY_SOFTMAX:
        values.only("expert_weights_scale", 1.0, 0.0)
    return {"num_experts_per_tok": values.integer("expert_used_count")}


def mixtral(values: Values, _config: Config) -> dict[str, Any]:
    """Mixtral, which files call Llama."""
    return {"num_local_experts": values.integer("expert_count"), **_chosen(values)}


def qwen3_moe(values: Values, _config: Config) -> dict[str, Any]:
    """Qwen3-MoE, whose weights of experts always add up to 1."""
    return {
        **_chosen(values),
        "num_experts": values.integer("expert_count"),
        "moe_intermediate_size": values.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def qwen2_moe(values: Values, config: Config) -> dict[str, Any]:
    """Qwen2-MoE, whose weights of experts stay what they are."""
    shared = values.integer("expert_shared_feed_forward_length")
    return {**qwen3_moe(values, config), "norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def olmoe(values: Values, _config: Config) -> dict[str, Any]:
    """OLMoE, whose weights of experts stay what they are."""
    return {**_chosen(values), "num_experts": values.integer("expert_count"), "norm_topk_prob": False}


def _routed(values: Values, config: Config) -> dict[str, Any]:
    """Experts as GLM-4.5's and DeepSeek's; a file counts the layers that predict further tokens among its blocks."""
    return {
        "num_hidden_layers": config["num_hidden_layers"] - values.integer("nextn_predict_layers", 0),
        "num_experts_per_tok": values.integer("expert_used_count"),
        "n_routed_experts": values.integer("expert_count"),
        "n_shared_experts": values.integer("expert_shared_count"),
        "moe_intermediate_size": values.integer("expert_feed_forward_length"),
        "first_k_dense_replace": values.integer("leading_dense_block_count", 0),
        "routed_scaling_factor": values.number("expert_weights_scale", 1.0) or 1.0,
    }


def glm4_moe(values: Values, config: Config) -> dict[str, Any]:
    """GLM-4.5 to 4.7, whose experts are chosen by sigmoids."""
    return {
        **turned(values, config),
        **_chosen(values, _BY_SIGMOID),
        **_routed(values, config),
        "attention_bias": values.has_tensor("attn_q.bias"),
        "use_qk_norm": values.has_tensor("attn_q_norm.weight"),
        "norm_topk_prob": values.flag("expert_weights_norm", True),
        "n_group": values.integer("expert_group_count", 1),
        "topk_group": values.integer("expert_group_used_count", 1),
    }


def minimax(values: Values, config: Config) -> dict[str, Any]:
    """MiniMax-M2, whose experts are chosen by sigmoids."""
    return {
        **_chosen(values, _BY_SIGMOID),
        "num_local_experts": values.integer("expert_count"),
        "intermediate_size": values.integer("expert_feed_forward_length", config["intermediate_size"]),
        "rotary_dim": values.integer("rope.dimension_count", config["head_dim"]),
    }


def gpt_oss(values: Values, config: Config) -> dict[str, Any]:
    """gpt-oss; its gates and ups, which take turns in a checkpoint, are two tensors here."""
    return {
        **_chosen(values),
        "num_local_experts": values.integer("expert_count"),
        "intermediate_size": values.integer("expert_feed_forward_length", config["intermediate_size"]),
        "sliding_window": values.integer("attention.sliding_window"),
        "attention_bias": values.has_tensor("attn_q.bias"),
        "experts_apart": True,
        "rope_scaling": {**yarn(values), "truncate": False},
    }


def deepseek2(values: Values, config: Config) -> dict[str, Any]:
    """DeepSeek-V2, V3, GLM-4.7-Flash, Mistral Large 3: what they are follows from how experts are chosen and weighed.

    Older files have the ways from latents to keys and to values as one tensor, and the columns of a whole head.
    """
    found, rope = _latent(values, config), _deepseek_yarn(values)
    norm = values.flag("expert_weights_norm", False)
    # Files of GLM-4.7-Flash have no word for it; only sigmoids are corrected.
    corrected = values.has_tensor("exp_probs_b.bias", found["first_k_dense_replace"])
    gating = values.integer("expert_gating_func", _BY_SIGMOID if corrected else _BY_SOFTMAX)
    if gating not in (_BY_SOFTMAX, _BY_SIGMOID):
        raise values.refused("expert_gating_func", f"{_BY_SOFTMAX} or {_BY_SIGMOID}")
    if gating == _BY_SOFTMAX and norm:
        return {**found, **_mistral4(values, rope, values.number("attention.temperature_scale", 0.0))}
    values.only("attention.temperature_scale", 0.0)
    if rope:
        found["rope_scaling"] = rope
    if gating == _BY_SIGMOID:
        return {**found, "architectures": ["DeepseekV3ForCausalLM"], "norm_topk_prob": norm}
    method = "greedy" if found["n_group"] == 1 else "group_limited_greedy"
    return {**found, "topk_method": method}


def mistral4(values: Values, config: Config) -> dict[str, Any]:
    """Mistral 4, whose files do not say how much more queries are worth at later positions."""
    values.only("expert_gating_func", _BY_SOFTMAX)
    beta = values.number("attention.temperature_scale", _MISTRAL4_BETA)
    return {**_latent(values, config), **_mistral4(values, _deepseek_yarn(values), beta)}


def _latent(values: Values, config: Config) -> dict[str, Any]:
    """Experts and attention but for how experts are scored, and how positions turn."""
    turning = values.integer("rope.dimension_count")
    experts = _routed(values, config)
    groups, kept = _GROUPS.get(experts["n_routed_experts"], (1, 1))
    return {
        **experts,
        "n_group": values.integer("expert_group_count", groups),
        "topk_group": values.integer("expert_group_used_count", kept),
        "q_lora_rank": values.integer("attention.q_lora_rank", None),
        "kv_lora_rank": values.integer("attention.kv_lora_rank"),
        "head_dim": turning,
        "qk_rope_head_dim": turning,
        "qk_nope_head_dim": values.integer("attention.key_length_mla", config["head_dim"]) - turning,
        "v_head_dim": values.integer("attention.value_length_mla", values.integer("attention.value_length", None)),
        "kv_b_apart": values.has_tensor("attn_k_b.weight"),
    }


def _deepseek_yarn(values: Values) -> dict[str, Any]:
    """YaRN, where the file has a tenth of how wide scores are spread, and rotated columns stay as they are."""
    if values.text("rope.scaling.type", "none") == "none":
        return {}
    found = yarn(values)
    if "mscale_all_dim" in found:
        # A tenth was rounded to float32.
        all_parts = round(10 * found["mscale_all_dim"], 6)
        found |= {"mscale": all_parts, "mscale_all_dim": all_parts}
    return found


def _mistral4(values: Values, rope: Config, beta: float) -> dict[str, Any]:
    """Softmax over all experts, whose weights then add up to 1; queries are worth more at later positions."""
    original = rope.get("original_max_position_embeddings", 0)
    values.only("attention.temperature_length", original)
    scaling = {"rope_type": "default", **rope, **({"llama_4_scaling_beta": beta} if beta and rope else {})}
    if beta and not rope:
        raise values.refused("attention.temperature_scale", "that of a file with YaRN")
    return {
        "architectures": ["Mistral4ForCausalLM"],
        "rope_parameters": {**scaling, "rope_theta": values.number("rope.freq_base", 10000.0)},
        "norm_topk_prob": True,
    }
