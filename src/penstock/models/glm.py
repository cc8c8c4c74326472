"""GLM-4 and GLM-4.5: half of each head turns; dense ones, with norms on both sides or before, and one of experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.layers.decoder import DecoderBlock
from penstock.layers.experts import MixtureOfExperts
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.models.common import (
    BlockStyle,
    Mlp,
    MlpOf,
    Sight,
    Sizes,
    gated_mlp,
    llama_model,
    read_grouped_routing,
    read_sizes,
)
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

GLM, GLM4, MOE = "GlmForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM"
# Part of a head that turns where a file does not say it.
_TURNED = 0.5


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """GLM-4 of 2024: gate and up are one tensor, and columns that turn together are neighbours."""
    return _declare_dense(ConfigReader(config, "glm"), GLM)


def declare_4(config: Mapping[str, Any]) -> ModelDeclaration:
    """GLM-4 of 2025: also a norm behind attention, and one behind the MLP."""
    declared = _declare_dense(ConfigReader(config, "glm4"), GLM4)
    decoder = declared.decoder
    assert decoder.norm is not None, "GLM has a final norm"
    eps = decoder.norm.eps

    def with_norms(index: int, block: DecoderBlock) -> DecoderBlock:
        name = f"model.layers.{index}"
        behind = [RmsNorm(f"{name}.post_{of}_layernorm", decoder.width, eps) for of in ("self_attn", "mlp")]
        return replace(block, after_attention=behind[0], after_mlp=behind[1])

    blocks = tuple(with_norms(index, block) for index, block in enumerate(decoder.blocks))
    return replace(declared, decoder=replace(decoder, blocks=blocks))


def _declare_dense(reader: ConfigReader, architecture: str) -> ModelDeclaration:
    sizes = read_sizes(reader, kv_heads=2, head_dim=128, max_positions=131072, eps=1.5625e-7)
    activation = read_activation(reader, "hidden_act", "silu")
    style = BlockStyle(activation, qkv_bias=reader.flag("attention_bias", True), paired=True)

    def mlp_of(name: str, _index: int) -> GatedMlp:
        return GatedMlp(f"{name}.mlp", sizes.width, sizes.inner_width, activation, fused=True)

    return _declare(reader, architecture, sizes, style, mlp_of)


def declare_moe(config: Mapping[str, Any]) -> ModelDeclaration:
    """GLM-4.5 to 4.7: experts in all layers but the first ones, chosen by sigmoids, and some that every row has.

    The layer behind the last one, which predicts a token more, is not used.
    """
    reader = ConfigReader(config, "glm4_moe")
    sizes = read_sizes(reader, kv_heads=8, head_dim=None, max_positions=131072, eps=1e-5)
    activation = read_activation(reader, "hidden_act", "silu")
    style = BlockStyle(
        activation, qkv_bias=reader.flag("attention_bias", False), head_norm=reader.flag("use_qk_norm", False)
    )
    routing = read_grouped_routing(reader, defaults=(128, 8))
    inner, dense = reader.integer("moe_intermediate_size", 1408), reader.count("first_k_dense_replace", 1)
    shared = inner * reader.integer("n_shared_experts", 1)
    reader.ignore("num_nextn_predict_layers", "num_mtp_layers")

    def mlp_of(name: str, index: int) -> Mlp:
        if index < dense:
            return gated_mlp(name, sizes, style)
        always = GatedMlp(f"{name}.mlp.shared_experts", sizes.width, shared, activation)
        correction = "gate.e_score_correction_bias"
        return MixtureOfExperts(
            f"{name}.mlp", sizes.width, inner, routing, activation, correction=correction, shared=always
        )

    declared = _declare(reader, MOE, sizes, style, mlp_of)
    return replace(declared, unused_tensors=(f"model.layers.{sizes.layers}.*",))


def _declare(
    reader: ConfigReader, architecture: str, sizes: Sizes, style: BlockStyle, mlp_of: MlpOf
) -> ModelDeclaration:
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions, partial=_TURNED)
    return llama_model(reader, architecture, sizes, style, [Sight(rope)] * sizes.layers, mlp_of=mlp_of)
