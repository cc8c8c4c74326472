"""Metadata of GGUF files, made of config.json as llama.cpp's converter makes them."""

import math
from typing import Any

import gguf
import numpy as np

from support.gguf_gemma4 import write_gemma4

# Whose norms have 1 added, and those that subtract the mean, with what config.json calls what they add.
SHIFTED = ("gemma2", "gemma3")
_CENTRED = {
    "cohere2": "layer_norm_eps",
    "starcoder2": "norm_epsilon",
    "gptneox": "layer_norm_eps",
    "gpt2": "layer_norm_epsilon",
}
_LATENT = ("deepseek2", "mistral4")
# Other names of what most call otherwise.
_NAMES = {
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_attention_heads": "n_head",
}


def layers_of(config: dict[str, Any]) -> int:
    """Number of blocks."""
    return int(_of(config, "num_hidden_layers"))


def _of(config: dict[str, Any], key: str) -> Any:
    return config[key] if key in config else config[_NAMES[key]]


def write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str, *, whole: bool) -> None:
    """All but the tokenizer's; with `whole`, those of files with more tensors in one (`gguf_orders`)."""
    writer.add_block_count(layers_of(config))
    writer.add_context_length(_of(config, "max_position_embeddings"))
    writer.add_embedding_length(_of(config, "hidden_size"))
    writer.add_head_count(_of(config, "num_attention_heads"))
    if architecture == "gemma4":
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        write_gemma4(writer, config)
        return
    writer.add_feed_forward_length(_of(config, "intermediate_size"))
    if architecture in _CENTRED:
        writer.add_layer_norm_eps(config[_CENTRED[architecture]])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if architecture in _LATENT:
        _write_latent(writer, config, whole=whole)
    elif "num_key_value_heads" in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
        # Some classes' configurations have none, and some converters do not write it.
        if config.get("head_dim") and architecture not in ("phi3", "chatglm"):
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["head_dim"])
    _write_rope(writer, config, architecture)
    _write_windows(writer, config, architecture)
    if architecture in SHIFTED:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if architecture.startswith("granite"):
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture == "cohere2":
        writer.add_logit_scale(config["logit_scale"])
    if architecture == "gptneox":
        writer.add_parallel_residual(config["use_parallel_residual"])
    _write_experts(writer, config)


def _write_latent(writer: gguf.GGUFWriter, config: dict[str, Any], *, whole: bool) -> None:
    """Of heads for latents, which all have one key, and those that checkpoints have; older files have the latter."""
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    latent, turning = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_kv_lora_rank(latent)
    writer.add_rope_dimension_count(turning)
    key, value = config["qk_nope_head_dim"] + turning, config["v_head_dim"]
    writer.add_head_count_kv(config["num_attention_heads"] if whole else 1)
    writer.add_key_length(key if whole else latent + turning)
    writer.add_value_length(value if whole else latent)
    if not whole:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)


def _write_rope(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if architecture == "gpt2":
        return
    if architecture != "gptneox":
        writer.add_rope_freq_base(full.get("rope_theta", 10000.0))
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if full.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if full.get("rope_type") == "yarn":
        _write_yarn(writer, full, architecture)
    if full.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(config["head_dim"], full))
    if full.get("rope_type") == "longrope":
        _write_longrope(writer, full, config["max_position_embeddings"])
    head_dim = config.get("head_dim") or _of(config, "hidden_size") // _of(config, "num_attention_heads")
    if "partial_rotary_factor" in rope and architecture not in _LATENT:
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    if architecture == "cohere2":
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _write_yarn(writer: gguf.GGUFWriter, rope: dict[str, Any], architecture: str) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope.get("attention_factor") is not None:
        writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if architecture in _LATENT:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def _write_longrope(writer: gguf.GGUFWriter, rope: dict[str, Any], longest: int) -> None:
    original = rope["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(longest / original) / math.log(original)))
    for kind in ("long", "short"):
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))


def _write_windows(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    if architecture in (*SHIFTED, "gpt-oss", "cohere2"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "phi3":
        writer.add_sliding_window(config["sliding_window"] or 0)
    if architecture == "olmo2" and "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def _write_experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    experts = next(
        (config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if key in config), 0
    )
    if not experts:
        return
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config["model_type"] in ("glm4_moe", "minimax_m2", "deepseek_v3"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config["model_type"] == "deepseek_v2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    if "n_shared_experts" not in config:
        return
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    kinds = config.get("mlp_layer_types") or ()
    writer.add_leading_dense_block_count(
        kinds.index("sparse") if "sparse" in kinds else config["first_k_dense_replace"]
    )
    if config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])


def _divisors(head_dim: int, rope: dict[str, Any]) -> np.ndarray[Any, Any]:
    """As the converter computes them."""
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    divisors = []
    for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < high:
            divisors.append(1.0)
        elif wavelength > low:
            divisors.append(rope["factor"])
        else:
            smooth = rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]
            smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)
