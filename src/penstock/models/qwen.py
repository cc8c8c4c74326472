"""Qwen2 and Qwen3: Llama's blocks, the one with biases on query, key and value, the other with norms on their heads."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_layer_types, read_rope
from penstock.models.declaration import ModelDeclaration

QWEN2, QWEN3 = "Qwen2ForCausalLM", "Qwen3ForCausalLM"


def declare_qwen2(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """Biases on the query, key and value projections; `path` is where in config.json the configuration is."""
    reader = ConfigReader(config, "qwen2", path)
    style = BlockStyle(read_activation(reader, "hidden_act", "silu"), qkv_bias=True)
    return _declare(reader, QWEN2, style, head_dim=None)


def declare_qwen3(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """RMS norm over every query and key head before rotation."""
    reader = ConfigReader(config, "qwen3", path)
    bias = reader.flag("attention_bias", False)
    activation = read_activation(reader, "hidden_act", "silu")
    style = BlockStyle(activation, qkv_bias=bias, output_bias=bias, head_norm=True)
    return _declare(reader, QWEN3, style, head_dim=128)


def _declare(reader: ConfigReader, architecture: str, style: BlockStyle, head_dim: int | None) -> ModelDeclaration:
    sizes = read_sizes(reader, kv_heads=None, head_dim=head_dim, max_positions=32768)
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    windows = read_windows(reader, sizes.layers)
    return llama_model(reader, architecture, sizes, style, [Sight(rope, window) for window in windows])


def read_windows(reader: ConfigReader, layers: int, *, alternate: bool = False, last: int = 28) -> list[int | None]:
    """Each layer's window: layers from `max_window_layers` on slide, unless `layer_types` says which do.

    Where they `alternate`, it is each second one of those before it. `last` is the family's default.
    """
    enabled = reader.flag("use_sliding_window", False)
    # Where it is off, some files have a window of 0.
    window = reader.optional_integer("sliding_window", 4096) if enabled else None
    reader.ignore("sliding_window")
    first = reader.count("max_window_layers", last)
    slides = read_layer_types(reader, layers)
    if slides is None:
        slides = tuple(index < first and index % 2 == 0 if alternate else index >= first for index in range(layers))
    elif window is None and any(slides):
        raise ModelFileError(
            "config.json has sliding layers in layer_types, but use_sliding_window is off or sliding_window is missing."
        )
    return [window if layer else None for layer in slides]
