"""Granite: Llama's blocks, with a factor each for embeddings, scores, residual additions and logits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.layers.experts import ExpertNames, MixtureOfExperts
from penstock.models.common import BlockStyle, MlpOf, Sight, Sizes, llama_model, read_routing, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

DENSE, MOE = "GraniteForCausalLM", "GraniteMoeForCausalLM"
_NAMES = ExpertNames(router="router.layer")


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """The dense models, without experts."""
    reader = ConfigReader(config, "granite")
    sizes, style = _read(reader)
    return _declare(reader, DENSE, sizes, replace(style, mlp_bias=reader.flag("mlp_bias", False)), None)


def declare_moe(config: Mapping[str, Any]) -> ModelDeclaration:
    """Weights are a softmax over the chosen experts; files have all experts' projections as one tensor each."""
    reader = ConfigReader(config, "granitemoe")
    sizes, style = _read(reader)
    routing = read_routing(reader, "num_local_experts", defaults=(8, 2), renormalise=True)

    def experts(name: str, _index: int) -> MixtureOfExperts:
        place = f"{name}.block_sparse_moe"
        return MixtureOfExperts(place, sizes.width, sizes.inner_width, routing, style.activation, _NAMES)

    return _declare(reader, MOE, sizes, style, experts)


def _read(reader: ConfigReader) -> tuple[Sizes, BlockStyle]:
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=2048)
    bias = reader.flag("attention_bias", False)
    style = BlockStyle(
        read_activation(reader, "hidden_act", "silu"),
        qkv_bias=bias,
        output_bias=bias,
        score_scale=reader.number("attention_multiplier", 1.0),
        residual_scale=reader.number("residual_multiplier", 1.0),
    )
    return sizes, style


def _declare(
    reader: ConfigReader, architecture: str, sizes: Sizes, style: BlockStyle, mlp_of: MlpOf | None
) -> ModelDeclaration:
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    embedding, divisor = reader.number("embedding_multiplier", 1.0), reader.number("logits_scaling", 1.0)
    declared = llama_model(reader, architecture, sizes, style, [Sight(rope)] * sizes.layers, mlp_of=mlp_of)
    decoder = replace(declared.decoder, embedding_scale=embedding, logit_scale=1.0 / divisor)
    return replace(declared, decoder=decoder)
