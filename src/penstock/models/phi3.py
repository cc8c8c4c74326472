"""Phi-3 and Phi-4: Llama's blocks with fused projections; where configured LongRoPE, and a part of each head turns."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.kernels.places import LongRope
from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

FAMILY = "phi3"
ARCHITECTURE = "Phi3ForCausalLM"


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Query, key and value are one tensor, and so are gate and up."""
    reader = ConfigReader(config, FAMILY)
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=4096, eps=1e-5)
    style = BlockStyle(read_activation(reader, "hidden_act", "silu"), fused=True)
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions, original=4096, partial=1.0)
    window = reader.optional_integer("sliding_window", None)
    # Of code that other models have; 1 switches both off.
    for key in ("full_attn_mod", "interpolate_factor"):
        if reader.integer(key, 1) != 1:
            raise reader.refuse(key, config[key], "implemented: 1")
    declared = llama_model(reader, ARCHITECTURE, sizes, style, [Sight(rope, window)] * sizes.layers)
    scaling = rope.scaling
    if not isinstance(scaling, LongRope) or not scaling.short:
        return declared
    note = (
        f"Contexts of up to {scaling.original_context:,} tokens have rotary divisors of their own, which are taken "
        "where --max-model-len is not above that."
    )
    return replace(declared, notes=(note,))
