"""OLMo 2 and 3: norms behind attention and MLP instead of before, and over all heads (OLMo 2 Furious, 2025)."""

from collections.abc import Mapping
from typing import Any

from penstock.models.common import BlockStyle, Sight, Sizes, llama_model, read_sizes
from penstock.models.config import (
    ConfigReader,
    read_activation,
    read_layer_types,
    read_rope,
    read_ropes_by_type,
)
from penstock.models.declaration import ModelDeclaration

OLMO2, OLMO3 = "Olmo2ForCausalLM", "Olmo3ForCausalLM"


def declare_olmo2(config: Mapping[str, Any]) -> ModelDeclaration:
    """Each layer sees all positions."""
    reader = ConfigReader(config, "olmo2")
    sizes, style = _read(reader)
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    return llama_model(reader, OLMO2, sizes, style, [Sight(rope)] * sizes.layers)


def declare_olmo3(config: Mapping[str, Any]) -> ModelDeclaration:
    """Three of four layers have a window; only the others' positions are scaled."""
    reader = ConfigReader(config, "olmo3")
    sizes, style = _read(reader)
    slides = read_layer_types(reader, sizes.layers)
    if slides is None:
        slides = tuple((index + 1) % 4 != 0 for index in range(sizes.layers))
    window = reader.integer("sliding_window", 4096)
    local, full = read_ropes_by_type(reader, sizes.heads.head_dim, sizes.max_positions, thetas=(500000.0, 500000.0))
    sights = [Sight(local, window) if slide else Sight(full) for slide in slides]
    return llama_model(reader, OLMO3, sizes, style, sights)


def _read(reader: ConfigReader) -> tuple[Sizes, BlockStyle]:
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=2048, eps=1e-5)
    bias = reader.flag("attention_bias", False)
    activation = read_activation(reader, "hidden_act", "silu")
    style = BlockStyle(activation, qkv_bias=bias, output_bias=bias, head_norm=True, whole_norm=True, norms="behind")
    return sizes, style
