"""Mixtral: Mistral's blocks, with experts in the place of every MLP (Jiang et al., Mixtral of Experts, 2024)."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.experts import ExpertNames, MixtureOfExperts
from penstock.models.common import BlockStyle, Sight, llama_model, read_routing, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

FAMILY = "mixtral"
ARCHITECTURE = "MixtralForCausalLM"
_NAMES = ExpertNames(gate="experts.{}.w1", up="experts.{}.w3", down="experts.{}.w2")


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Weights of the chosen experts add up to one."""
    reader = ConfigReader(config, FAMILY)
    sizes = read_sizes(reader, kv_heads=8, head_dim=None, max_positions=131072, eps=1e-5)
    style = BlockStyle(read_activation(reader, "hidden_act", "silu"))
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions, base=1e6)
    window = reader.optional_integer("sliding_window", None)
    routing = read_routing(reader, "num_local_experts", defaults=(8, 2), renormalise=True)

    def experts(name: str, _index: int) -> MixtureOfExperts:
        place = f"{name}.block_sparse_moe"
        return MixtureOfExperts(place, sizes.width, sizes.inner_width, routing, style.activation, _NAMES)

    return llama_model(reader, ARCHITECTURE, sizes, style, [Sight(rope, window)] * sizes.layers, mlp_of=experts)
