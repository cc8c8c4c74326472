"""gpt-oss: attention with sinks, every other layer behind a window; experts with biases and a bounded gate."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.experts import ExpertNames, MixtureOfExperts
from penstock.models.common import BlockStyle, Sight, llama_model, read_routing, read_sizes
from penstock.models.config import ConfigReader, read_layer_types, read_rope
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "GptOssForCausalLM"
_TAKING_TURNS = ExpertNames(router="router", both="experts.{}.gate_up_proj")
_APART = ExpertNames(router="router")
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
# What the gate of `signature.GateName` is.
_LIMIT, _STEEPNESS = 7.0, 1.702


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Weights are a softmax over the chosen experts, whose biases take part in choice and weight.

    Gates and ups take turns as rows of one tensor, unless `experts_apart` says otherwise, as it does of GGUF files.
    """
    has_rope = config.get("rope_parameters") or config.get("rope_scaling")
    reader = ConfigReader(config if has_rope else {**config, "rope_parameters": _YARN}, "gpt_oss")
    sizes = read_sizes(reader, kv_heads=8, head_dim=64, max_positions=131072, eps=1e-5)
    bias = reader.flag("attention_bias", True)
    reader.choice("hidden_act", ("silu",), "silu")
    for key, value in (("swiglu_limit", _LIMIT), ("swiglu_alpha", _STEEPNESS)):
        if (found := reader.number(key, value)) != value:
            raise reader.refuse(key, found, f"implemented: {value}")
    # Other names of what is read, or of what the rotary settings say.
    reader.ignore("experts_per_token", "initial_context_length")
    routing = read_routing(reader, "num_experts", "num_local_experts", defaults=(128, 4), renormalise=True)
    names = _APART if reader.flag("experts_apart", False) else _TAKING_TURNS
    window = reader.optional_integer("sliding_window", 128)
    slides = read_layer_types(reader, sizes.layers) or tuple(index % 2 == 0 for index in range(sizes.layers))
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions, base=150000.0)

    def experts(name: str, _index: int) -> MixtureOfExperts:
        return MixtureOfExperts(f"{name}.mlp", sizes.width, sizes.inner_width, routing, "swigluoai", names, biased=True)

    style = BlockStyle("silu", qkv_bias=bias, output_bias=bias, sunk=True)
    sights = [Sight(rope, window if slide else None) for slide in slides]
    return llama_model(reader, ARCHITECTURE, sizes, style, sights, mlp_of=experts)
