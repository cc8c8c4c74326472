"""Mistral: Llama's blocks with a sliding window in every layer."""

from collections.abc import Mapping
from typing import Any

from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_layer_types, read_rope
from penstock.models.declaration import ModelDeclaration

FAMILY = "mistral"
ARCHITECTURE = "MistralForCausalLM"


def declare(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """`sliding_window` null, as in later releases, means full attention; where it is missing it is 4096."""
    reader = ConfigReader(config, FAMILY, path)
    sizes = read_sizes(reader, kv_heads=8, head_dim=None, max_positions=131072)
    style = BlockStyle(read_activation(reader, "hidden_act", "silu"))
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    window = reader.optional_integer("sliding_window", 4096)
    slides = read_layer_types(reader, sizes.layers)
    if slides is not None and any(layer != (window is not None) for layer in slides):
        raise reader.refuse("layer_types", config["layer_types"], "all layers slide, or none where there is no window")
    return llama_model(reader, ARCHITECTURE, sizes, style, [Sight(rope, window)] * sizes.layers)
