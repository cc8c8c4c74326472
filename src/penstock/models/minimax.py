"""MiniMax-M2: norms over all query heads together and all key heads, experts chosen by sigmoids."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.layers.experts import ExpertNames, MixtureOfExperts
from penstock.models.common import BlockStyle, Sight, llama_model, read_routing, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

FAMILY = "minimax_m2"
ARCHITECTURE = "MiniMaxM2ForCausalLM"
_NAMES = ExpertNames(gate="experts.{}.w1", up="experts.{}.w3", down="experts.{}.w2")
# What published files say of the code that they came from; other values are refused. Layers that predict further tokens
# and linear attention are not in the files.
_FIXED = {"scoring_func": "sigmoid", "qk_norm_type": "per_layer", "use_qk_norm": True, "use_routing_bias": True}
_UNUSED = (
    "attn_type_list",
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "mlp_intermediate_size",
    "mtp_transformer_layers",
    "num_mtp_modules",
    "shared_moe_mode",
    "use_mtp",
)


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """`intermediate_size` is that of an expert; older files have the columns that turn as `rotary_dim`."""
    reader = ConfigReader(config, FAMILY)
    sizes = read_sizes(reader, kv_heads=8, head_dim=128, max_positions=196608)
    style = BlockStyle(read_activation(reader, "hidden_act", "silu"), head_norm=True, whole_norm=True)
    turned = reader.integer("rotary_dim", sizes.heads.head_dim) / sizes.heads.head_dim
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions, partial=turned, base=5e6)
    routing = read_routing(reader, "num_local_experts", defaults=(256, 8), renormalise=True)
    if reader.count("shared_intermediate_size", 0):
        raise reader.refuse("shared_intermediate_size", config["shared_intermediate_size"], "implemented: 0")
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            raise reader.refuse(key, config[key], f"implemented: {value}")
    if any(kind != 1 for kind in reader.integers("attn_type_list") or ()):
        raise reader.refuse("attn_type_list", config["attn_type_list"], "implemented: 1 for every layer")
    reader.ignore(*_FIXED, *_UNUSED)

    def experts(name: str, _index: int) -> MixtureOfExperts:
        return MixtureOfExperts(
            f"{name}.block_sparse_moe",
            sizes.width,
            sizes.inner_width,
            replace(routing, score="sigmoid"),
            style.activation,
            _NAMES,
            correction="e_score_correction_bias",
        )

    return llama_model(reader, ARCHITECTURE, sizes, style, [Sight(rope)] * sizes.layers, mlp_of=experts)
