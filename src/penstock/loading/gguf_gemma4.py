"""What config.json says of Gemma 4 instead of a GGUF file's metadata: of its layers, which differ in much."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.loading.gguf_rope import ROPE_FACTORS
from penstock.loading.gguf_values import Values

# What files may say layer by layer.
VARIED = ("feed_forward_length", "attention.head_count_kv")
_PATTERN = 6
# By this much or more the angles of pairs are divided that do not turn.
_STILL = 1e20


def gemma4(values: Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """Heads of layers with a window are of another size than the others', which the file's first size is."""
    layers = config["num_hidden_layers"]
    if layers < 1:
        raise values.refused("block_count", "at least 1")
    kinds = values.kinds_of_layers(layers, _PATTERN)
    local = values.integer("attention.key_length_swa")
    for name in ("attention.value_length_swa", "rope.dimension_count_swa"):
        values.only(name, local)
    borrowing = values.integer("attention.shared_kv_layers", 0)
    heads = values.of_layers("attention.head_count_kv", layers)
    full = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    wide = {"head_dim": config["head_dim"], "num_key_value_heads": heads[full[-1]] if full else heads[-1]}
    mlp, doubled = _mlp(values, layers, borrowing)
    return {
        **_experts(values),
        "head_dim": local,
        "num_key_value_heads": next((heads[index] for index in range(layers) if index not in full), heads[0]),
        "intermediate_size": mlp,
        "use_double_wide_mlp": doubled,
        "layer_types": kinds,
        "per_layer_config": {str(index): wide for index in full},
        "attention_k_eq_v": bool(full) and not values.has_tensor("attn_v.weight", full[0]),
        "num_kv_shared_layers": borrowing,
        "sliding_window": values.integer("attention.sliding_window"),
        "rope_parameters": _ropes(values, config),
        "final_logit_softcapping": values.number("final_logit_softcapping", None),
        "hidden_size_per_layer_input": values.integer("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": config["vocab_size"],
    }


def _mlp(values: Values, layers: int, borrowing: int) -> tuple[int, bool]:
    """Columns of an MLP's hidden layer, and whether layers that borrow keys have twice as many."""
    widths: Sequence[int] = values.of_layers("feed_forward_length", layers)
    own = layers - borrowing
    doubled = borrowing > 0 and widths[-1] == 2 * widths[0]
    if list(widths) != [widths[0]] * own + [widths[0] * (2 if doubled else 1)] * borrowing:
        raise values.refused("feed_forward_length", "one width, or twice that where layers borrow keys")
    return widths[0], doubled


def _ropes(values: Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """A file says by factors which pairs of a wide head turn."""
    factors, pairs = values.numbers(ROPE_FACTORS), config["head_dim"] // 2
    if factors is None or len(factors) != pairs:
        there = 0 if factors is None else len(factors)
        raise values.unsupported(f"has {there} numbers as {ROPE_FACTORS}, which must be one for each of {pairs} pairs.")
    turning = sum(factor == 1.0 for factor in factors)
    if not all(factor >= _STILL for factor in factors[turning:]):
        raise values.unsupported(f"has {ROPE_FACTORS} of several sizes; implemented: 1, and behind it 1e30.")
    full = {
        "rope_type": "proportional",
        "rope_theta": config["rope_theta"],
        "partial_rotary_factor": turning / pairs,
    }
    local = {"rope_type": "default", "rope_theta": values.number("rope.freq_base_swa", 10000.0)}
    return {"sliding_attention": local, "full_attention": full}


def _experts(values: Values) -> dict[str, Any]:
    if not values.has_tensor("ffn_gate_inp.weight"):
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": values.integer("expert_count"),
        "top_k_experts": values.integer("expert_used_count"),
        "moe_intermediate_size": values.integer("expert_feed_forward_length"),
    }
