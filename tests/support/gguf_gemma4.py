"""Metadata of Gemma 4's GGUF files, made of config.json as llama.cpp's converter makes them."""

import re
from typing import Any

import gguf
import numpy as np

_NAMES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "layer_scalar": "layer_output_scale.weight",
}


def renamed(name: str) -> str | None:
    """What the converter calls a tensor that the `gguf` package knows under no such name."""
    block = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    return f"blk.{block[1]}.{_NAMES[block[2]]}" if block and block[2] in _NAMES else None


def write_gemma4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Sizes that layers differ in, and what else no other architecture has."""
    kinds, layers = config["layer_types"], config["num_hidden_layers"]
    slides = [kind == "sliding_attention" for kind in kinds]
    full = next(iter(config["per_layer_config"].values()))
    heads = config["num_key_value_heads"], full.get("num_key_value_heads", config["num_key_value_heads"])
    own = layers - config["num_kv_shared_layers"]
    doubled = 2 if config["use_double_wide_mlp"] else 1
    width = config["intermediate_size"]
    if doubled == 1:
        writer.add_feed_forward_length(width)
    else:
        writer.add_feed_forward_length([width * (1 if index < own else 2) for index in range(layers)])
    if heads[0] == heads[1]:
        writer.add_head_count_kv(heads[0])
    else:
        writer.add_head_count_kv([heads[0] if slide else heads[1] for slide in slides])
    size, local = full["head_dim"], config["head_dim"]
    for add, value in (
        (writer.add_key_length, size),
        (writer.add_value_length, size),
        (writer.add_key_length_swa, local),
        (writer.add_value_length_swa, local),
        (writer.add_rope_dimension_count, size),
        (writer.add_rope_dimension_count_swa, local),
        (writer.add_sliding_window, config["sliding_window"]),
        (writer.add_sliding_window_pattern, slides),
        (writer.add_shared_kv_layers, config["num_kv_shared_layers"]),
        (writer.add_embedding_length_per_layer_input, config["hidden_size_per_layer_input"]),
        (writer.add_final_logit_softcapping, config["final_logit_softcapping"]),
    ):
        add(value)
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    turning = int(size * ropes["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (size // 2 - turning), np.float32))
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
