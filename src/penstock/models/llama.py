"""Llama 2 and 3.x."""

from collections.abc import Mapping
from typing import Any

from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

FAMILY = "llama"
ARCHITECTURE = "LlamaForCausalLM"


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Full attention in every layer; llama3 or linear scaling of rotary positions where configured."""
    reader = ConfigReader(config, FAMILY)
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=2048)
    attention_bias = reader.flag("attention_bias", False)
    style = BlockStyle(
        activation=read_activation(reader, "hidden_act", "silu"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    return llama_model(reader, ARCHITECTURE, sizes, style, [Sight(rope)] * sizes.layers)
