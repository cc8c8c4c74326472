"""SmolLM3: Llama's blocks; in each fourth layer heads do not turn (Yang et al., Rope to Nope and Back Again, 2025)."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_layer_types, read_rope
from penstock.models.declaration import ModelDeclaration

FAMILY = "smollm3"
ARCHITECTURE = "SmolLM3ForCausalLM"


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """`no_rope_layers` has a 1 for each layer whose heads turn."""
    reader = ConfigReader(config, FAMILY)
    sizes = read_sizes(reader, kv_heads=4, head_dim=None, max_positions=32768)
    bias = reader.flag("attention_bias", False)
    style = BlockStyle(
        read_activation(reader, "hidden_act", "silu"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions, base=2e6)
    every = reader.integer("no_rope_layer_interval", 4)
    turns = reader.integers("no_rope_layers") or tuple(int((at + 1) % every != 0) for at in range(sizes.layers))
    if len(turns) != sizes.layers:
        raise ModelFileError(f"config.json has {len(turns)} no_rope_layers for {sizes.layers} layers.")
    used, window = reader.flag("use_sliding_window", False), reader.optional_integer("sliding_window", None)
    slides = read_layer_types(reader, sizes.layers) or tuple(window is not None and not turn for turn in turns)
    # Said of the family that its code came from.
    reader.ignore("max_window_layers")
    sights = [
        Sight(rope if turn else None, window if used and slide else None)
        for turn, slide in zip(turns, slides, strict=True)
    ]
    return llama_model(reader, ARCHITECTURE, sizes, style, sights, tied=True)
