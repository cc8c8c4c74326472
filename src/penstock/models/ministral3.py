"""Ministral 3: Mistral's blocks, YaRN, and queries that are worth more far behind the original context."""

from collections.abc import Mapping
from typing import Any

from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope, split_query_scale
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "Ministral3ForCausalLM"
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def declare(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """Rotary settings have how much more queries are worth, too.

    `path` is where in config.json the configuration is.
    """
    settings, query_scale = split_query_scale(config, "ministral3", _YARN, path)
    others = {key: value for key, value in config.items() if key != "rope_scaling"}
    reader = ConfigReader({**others, "rope_parameters": settings}, "ministral3", path)
    sizes = read_sizes(reader, kv_heads=8, head_dim=128, max_positions=262144, eps=1e-5)
    style = BlockStyle(
        read_activation(reader, "hidden_act", "silu"),
        query_scale=query_scale,
    )
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    window = reader.optional_integer("sliding_window", None)
    return llama_model(reader, ARCHITECTURE, sizes, style, [Sight(rope, window)] * sizes.layers)
