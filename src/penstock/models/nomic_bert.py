"""NomicBERT and GTE: BERT with rotary positions and gates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.kernels.places import RopeSpec
from penstock.kernels.signature import GateName, HeadLayout
from penstock.layers.attention import AttentionNames
from penstock.layers.decoder import DecoderBlock, Table
from penstock.layers.mlp import GatedMlp, GatedNames
from penstock.layers.norm import LayerNorm
from penstock.models.common import read_heads
from penstock.models.config import ConfigReader, read_activation, read_dtype, read_rope
from penstock.models.declaration import ModelDeclaration
from penstock.models.encoders import MutualStyle, encoder_of, summed_block

NOMIC = "NomicBertModel"
GTE = "NewModel"
GTE_IN_TRANSFORMERS = "GteModel"
# What published files may say and none does.
_OFF = (
    *("prenorm", "parallel_block", "rotary_emb_interleaved", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias"),
    *("mlp_fc2_bias", "causal", "scale_attn_by_inverse_layer_idx", "last_layer_subset"),
)
_GATES: dict[str, GateName] = {"swiglu": "silu", "geglu": "gelu"}


@dataclass(frozen=True, slots=True)
class _Names:
    """What a family calls its tensors: blocks, attention, MLP, and the norms behind both."""

    block: str
    attention: AttentionNames
    attention_folder: str
    mlp: GatedNames
    attention_norm: str
    mlp_norm: str
    embedding_norm: str
    unused: tuple[str, ...]


_NOMIC = _Names(
    "encoder.layers",
    AttentionNames(fused="Wqkv", output="out_proj"),
    "attn",
    GatedNames(gate="fc12", up="fc11", down="fc2"),
    "norm1",
    "norm2",
    "emb_ln",
    ("pooler.*", "cls.*"),
)
_GTE = _Names(
    "encoder.layer",
    AttentionNames(fused="qkv_proj", output="o_proj"),
    "attention",
    GatedNames(fused="up_gate_proj"),
    "attn_ln",
    "mlp_ln",
    "embeddings.LayerNorm",
    ("*pooler.*", "*position_ids", "lm_head.*", "classifier.*"),
)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What a configuration says, under whichever names."""

    vocabulary: int
    width: int
    inner: int
    layers: int
    positions: int
    types: int
    eps: float
    layout: HeadLayout
    rope: RopeSpec
    gate: GateName


def declare_nomic(config: Mapping[str, Any]) -> ModelDeclaration:
    """Nussbaum et al., Nomic Embed, 2024: nomic-embed-text, whose published files have the keys of GPT-2."""
    reader = ConfigReader(config, "nomic_bert")
    published = "n_embd" in config
    width, layout = read_heads(reader, *(("n_embd", "n_head") if published else ("hidden_size", "num_attention_heads")))
    positions = reader.integer("n_positions" if published else "max_position_embeddings", 2048)
    if published:
        gate = _GATES[reader.choice("activation_function", tuple(_GATES), "swiglu")]
        rope = RopeSpec(layout.head_dim, reader.number("rotary_emb_base", 10000.0))
        if (share := reader.number("rotary_emb_fraction", 1.0)) != 1.0:
            raise reader.refuse("rotary_emb_fraction", share, "implemented: 1")
    else:
        gate, rope = read_activation(reader, "hidden_act", "silu"), read_rope(reader, layout.head_dim, positions)
    for key in _OFF:
        if reader.flag(key, False):
            raise reader.refuse(key, True, "implemented: false")
    for key in ("rotary_scaling_factor", "rotary_emb_scale_base"):
        if (factor := reader.optional_number(key)) is not None:
            raise reader.refuse(key, factor, "implemented: null")
    if not reader.flag("scale_attn_weights", True):
        raise reader.refuse("scale_attn_weights", False, "implemented: true")
    if reader.integer("head_dim", layout.head_dim) != layout.head_dim:
        raise reader.refuse("head_dim", config["head_dim"], "heads that are equal parts of the width are implemented")
    sizes = _Sizes(
        reader.integer("vocab_size"),
        width,
        reader.integer("n_inner" if published else "intermediate_size"),
        reader.integer("n_layer" if published else "num_hidden_layers", largest=4096),
        positions,
        reader.integer("type_vocab_size", 2),
        reader.number("layer_norm_epsilon" if published else "layer_norm_eps", 1e-12),
        layout,
        rope,
        gate,
    )
    dtype = read_dtype(reader)
    # Of contexts beyond `max_trained_positions`; how other programs compute the same; dropout.
    reader.ignore("architectures", "model_type", "max_trained_positions")
    reader.ignore("use_flash_attn", "fused_bias_fc", "fused_dropout_add_ln", "use_xentropy", "dense_seq_output")
    reader.ignore("pad_vocab_size_multiple", "n_ctx")
    reader.ignore("summary_type", "summary_use_proj", "summary_first_dropout", "summary_proj_to_labels")
    reader.ignore("summary_activation", "reorder_and_upcast_attn", "tie_word_embeddings")
    reader.ignore("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    reader.refuse_unread()
    return _declare(NOMIC, reader.family, sizes, _NOMIC, dtype, biased=False)


def declare_gte(config: Mapping[str, Any]) -> ModelDeclaration:
    """Zhang et al., mGTE, 2024: gte-base, -large and -multilingual of the second generation."""
    reader = ConfigReader(config, "gte")
    width, layout = read_heads(reader)
    positions = reader.integer("max_position_embeddings", 8192)
    reader.choice("position_embedding_type", ("rope",), "rope")
    reader.choice("layer_norm_type", ("layer_norm",), "layer_norm")
    sizes = _Sizes(
        reader.integer("vocab_size"),
        width,
        reader.integer("intermediate_size"),
        reader.integer("num_hidden_layers", largest=4096),
        positions,
        reader.count("type_vocab_size", 0),
        reader.number("layer_norm_eps", 1e-12),
        layout,
        read_rope(reader, layout.head_dim, positions),
        read_activation(reader, "hidden_act", "gelu"),
    )
    packed, dtype = reader.flag("pack_qkv", True), read_dtype(reader)
    if not packed:
        raise reader.refuse("pack_qkv", False, "implemented: true")
    reader.ignore("architectures", "model_type", "hidden_dropout_prob", "attention_probs_dropout_prob")
    for key in ("logn_attention_scale", "logn_attention_clip1"):
        if reader.flag(key, False):
            raise reader.refuse(key, True, "implemented: false")
    reader.ignore("classifier_dropout", "unpad_inputs")
    reader.ignore("use_memory_efficient_attention", "tie_word_embeddings")
    reader.refuse_unread()
    return _declare(GTE, reader.family, sizes, _GTE, dtype, biased=True)


def _declare(
    architecture: str, family: str, sizes: _Sizes, names: _Names, dtype: str, *, biased: bool
) -> ModelDeclaration:
    width, prefix = sizes.width, _prefix(names)

    style = MutualStyle(names.attention, biased, sizes.rope, fused=True)

    def block(index: int) -> DecoderBlock:
        name = f"{prefix}{names.block}.{index}"
        return summed_block(
            index,
            f"{name}.{names.attention_folder}",
            width,
            sizes.layout,
            style,
            GatedMlp(
                f"{name}.mlp", width, sizes.inner, sizes.gate, down_bias=biased, ups_first=biased, names=names.mlp
            ),
            (
                LayerNorm(f"{name}.{names.attention_norm}", width, sizes.eps),
                LayerNorm(f"{name}.{names.mlp_norm}", width, sizes.eps),
            ),
        )

    encoder = encoder_of(
        sizes.vocabulary,
        width,
        (sizes.layers, block),
        prefix,
        LayerNorm(f"{prefix}{names.embedding_norm}", width, sizes.eps),
        types=Table(f"{prefix}embeddings.token_type_embeddings", sizes.types) if sizes.types else None,
    )
    return ModelDeclaration(
        architecture, family, sizes.vocabulary, sizes.positions, dtype, encoder, unused_tensors=names.unused
    )


def _prefix(names: _Names) -> str:
    """What names begin with where a file has a larger model around it."""
    return "bert." if names is _NOMIC else "new."
