"""OLMoE: norms over all query heads together and all key heads, and many small experts (Muennighoff et al., 2024)."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.experts import MixtureOfExperts
from penstock.models.common import BlockStyle, Sight, llama_model, read_routing, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

FAMILY = "olmoe"
ARCHITECTURE = "OlmoeForCausalLM"


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """`intermediate_size` is that of an expert; published models leave weights as the softmax has them."""
    reader = ConfigReader(config, FAMILY)
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=4096, eps=1e-5)
    bias = reader.flag("attention_bias", False)
    activation = read_activation(reader, "hidden_act", "silu")
    style = BlockStyle(activation, qkv_bias=bias, output_bias=bias, head_norm=True, whole_norm=True)
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    routing = read_routing(reader, "num_experts", defaults=(64, 8), renormalise=reader.flag("norm_topk_prob", False))

    def experts(name: str, _index: int) -> MixtureOfExperts:
        return MixtureOfExperts(f"{name}.mlp", sizes.width, sizes.inner_width, routing, activation)

    return llama_model(reader, ARCHITECTURE, sizes, style, [Sight(rope)] * sizes.layers, mlp_of=experts)
