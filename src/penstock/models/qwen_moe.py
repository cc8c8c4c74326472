"""Qwen2-MoE and Qwen3-MoE: the dense family's attention, and experts in the place of most layers' MLPs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.layers.experts import MixtureOfExperts
from penstock.layers.mlp import GatedMlp
from penstock.models.common import (
    BlockStyle,
    Mlp,
    MlpOf,
    Sight,
    Sizes,
    gated_mlp,
    llama_model,
    read_routing,
    read_sizes,
)
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration
from penstock.models.qwen import read_windows

QWEN2, QWEN3 = "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"


def declare_qwen2(config: Mapping[str, Any]) -> ModelDeclaration:
    """Biases on query, key and value; beside its experts, each row has one that is shared, by a gate of its own."""
    reader = ConfigReader(config, "qwen2_moe")
    style = BlockStyle(read_activation(reader, "hidden_act", "silu"), qkv_bias=reader.flag("qkv_bias", True))
    sizes = read_sizes(reader, kv_heads=16, head_dim=None, max_positions=32768)
    windows = read_windows(reader, sizes.layers, alternate=True)
    shared = reader.integer("shared_expert_intermediate_size", 5632)
    mlp_of = _read_mlps(reader, sizes, style, experts=(60, 4), inner=1408, shared=shared)
    return _declare(reader, QWEN2, sizes, style, windows, mlp_of)


def declare_qwen3(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """RMS norm over every query and key head before rotation; no shared expert.

    `path` is where in config.json the configuration is.
    """
    reader = ConfigReader(config, "qwen3_moe", path)
    bias = reader.flag("attention_bias", False)
    activation = read_activation(reader, "hidden_act", "silu")
    style = BlockStyle(activation, qkv_bias=bias, output_bias=bias, head_norm=True)
    sizes = read_sizes(reader, kv_heads=4, head_dim=None, max_positions=32768)
    enabled = reader.flag("use_sliding_window", False)
    windows = [reader.optional_integer("sliding_window", 4096) if enabled else None] * sizes.layers
    # All layers slide, or none; files have the second all the same.
    reader.ignore("sliding_window", "max_window_layers")
    mlp_of = _read_mlps(reader, sizes, style, experts=(128, 8), inner=768, shared=None)
    return _declare(reader, QWEN3, sizes, style, windows, mlp_of)


def _read_mlps(
    reader: ConfigReader, sizes: Sizes, style: BlockStyle, *, experts: tuple[int, int], inner: int, shared: int | None
) -> MlpOf:
    """The layers with experts are each `decoder_sparse_step`-th, without those in `mlp_only_layers`."""
    renormalise = reader.flag("norm_topk_prob", False)
    # transformers has written the second of late.
    routing = read_routing(reader, "num_experts", "num_local_experts", defaults=experts, renormalise=renormalise)
    inner_width = reader.integer("moe_intermediate_size", inner)
    step, dense = reader.integer("decoder_sparse_step", 1), reader.integers("mlp_only_layers") or ()

    def mlp_of(name: str, index: int) -> Mlp:
        if index in dense or (index + 1) % step:
            return gated_mlp(name, sizes, style)
        mixture = MixtureOfExperts(f"{name}.mlp", sizes.width, inner_width, routing, style.activation)
        if shared is None:
            return mixture
        expert = GatedMlp(f"{name}.mlp.shared_expert", sizes.width, shared, style.activation)
        return replace(mixture, shared=expert, shared_gate="shared_expert_gate")

    return mlp_of


def _declare(
    reader: ConfigReader,
    architecture: str,
    sizes: Sizes,
    style: BlockStyle,
    windows: list[int | None],
    mlp_of: MlpOf,
) -> ModelDeclaration:
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    return llama_model(reader, architecture, sizes, style, [Sight(rope, window) for window in windows], mlp_of=mlp_of)
