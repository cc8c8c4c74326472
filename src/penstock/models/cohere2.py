"""Cohere Command R7B and A: attention and MLP side by side, and positions only where attention has a window."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.layers.norm import LayerNorm
from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_layer_types, read_rope
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "Cohere2ForCausalLM"


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Layer norms without biases; every fourth layer sees the whole context, and does not turn."""
    reader = ConfigReader(config, "cohere2")
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=8192, eps=1e-5, eps_key="layer_norm_eps")
    bias = reader.flag("attention_bias", False)
    activation = read_activation(reader, "hidden_act", "silu")
    style = BlockStyle(activation, qkv_bias=bias, output_bias=bias, paired=True, parallel=True)
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    window = reader.integer("sliding_window", 4096)
    # Files have one way or the other to say which layers slide.
    pattern = reader.integer("sliding_window_pattern", 4)
    by_pattern = tuple((index + 1) % pattern != 0 for index in range(sizes.layers))
    slides = read_layer_types(reader, sizes.layers) or by_pattern
    scale = reader.number("logit_scale", 0.0625)
    # What older programs needed to know, of blocks that are all so.
    reader.ignore("use_parallel_block", "use_parallel_embedding", "use_gated_activation", "position_embedding_type")
    reader.ignore("rotary_pct", "order_of_interleaved_layers", "layer_switch", "use_embedding_sharing", "use_qk_norm")
    sights = [Sight(rope, window) if slide else Sight(None) for slide in slides]
    declared = llama_model(
        reader,
        ARCHITECTURE,
        sizes,
        style,
        sights,
        norm_of=lambda name: LayerNorm(name, sizes.width, sizes.eps, biased=False),
        tied=True,
    )
    return replace(declared, decoder=replace(declared.decoder, logit_scale=scale))
