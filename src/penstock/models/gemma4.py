"""Gemma 4, text: two sizes of heads, keys that are values, layers that read others' keys, inputs of layers, experts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.kernels.signature import ActivationName, HeadLayout, Routing
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.experts import DenseBesideExperts, ExpertNames, MixtureOfExperts
from penstock.layers.layer_inputs import LayerInput, LayerInputs
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.models.common import Sight, Sizes, read_routing, read_sizes
from penstock.models.config import (
    ConfigReader,
    read_activation,
    read_dtype,
    read_layer_types,
    read_ropes_by_type,
)
from penstock.models.declaration import ModelDeclaration

FAMILY = "gemma4"
ARCHITECTURE = "Gemma4ForCausalLM"
# Published configurations leave out what the family has where nothing is said.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
}
# The same of checkpoints whose images and sounds have no towers of their own.
_UNIFIED = {"hidden_size_per_layer_input": 0, "sliding_window": 1024, "max_position_embeddings": 262144}
# Each sixth layer sees everything, unless a file says which do.
_PATTERN = 6
_WIDER = ("head_dim", "num_key_value_heads")


@dataclass(frozen=True, slots=True)
class _Style:
    """What blocks have beside their sizes.

    Attributes:
        keys_as_values: whether layers without a window have one projection for both.
        doubled: whether MLPs of layers that borrow keys are twice as wide.
        layer_input: columns of each layer's own vector of a token; 0: there is none.
        routing, expert_width: of experts beside the MLP, and columns of their hidden layers; None: there are none.
    """

    activation: ActivationName
    bias: bool
    keys_as_values: bool
    doubled: bool
    layer_input: int
    routing: Routing | None
    expert_width: int


def declare_unified(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """The text model of a checkpoint that takes images and sounds without towers of their own."""
    return declare({**_UNIFIED, **_said(config)}, path)


def declare(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """Declares a Gemma 4 checkpoint that takes text only; `path` is where in config.json its configuration is."""
    reader = ConfigReader({**_DEFAULTS, **_said(config)}, FAMILY, path)
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=131072)
    style = _read_style(reader)
    slides = _read_slides(reader, sizes.layers)
    window = reader.integer("sliding_window", 512)
    wide = _read_wide_heads(reader, sizes.heads, slides, style)
    local, full = read_ropes_by_type(
        reader, sizes.heads.head_dim, sizes.max_positions, full_head_dim=wide.head_dim, thetas=(10000.0, 1000000.0)
    )
    # Pieces of an image would see those behind them. A text has none.
    reader.choice("use_bidirectional_attention", ("vision",), "vision")
    sources = _read_sources(reader, slides)
    rows = _read_rows(reader, sizes.vocab_size) if style.layer_input else 0
    tied = reader.flag("tie_word_embeddings", True)
    logit_cap = reader.optional_number("final_logit_softcapping")
    dtype = read_dtype(reader)
    reader.ignore("architectures", "model_type")
    reader.refuse_unread()

    sights = [(Sight(local, window), sizes.heads) if slide else (Sight(full), wide) for slide in slides]
    blocks = tuple(
        _block(index, source, replace(sizes, heads=heads), style, sight)
        for index, (source, (sight, heads)) in enumerate(zip(sources, sights, strict=True))
    )
    decoder = Decoder(
        vocab_size=sizes.vocab_size,
        width=sizes.width,
        blocks=blocks,
        norm=_norm("model.norm", sizes),
        head=None if tied else "lm_head",
        embedding_scale=sizes.width**0.5,
        embedding_scale_rounded=True,
        logit_cap=logit_cap,
        layer_inputs=_layer_inputs(sizes, style.layer_input, rows) if rows else None,
    )
    # Published files have them, and nothing reads them.
    unused = tuple(
        f"*layers.{index}.self_attn.{name}.*"
        for index, source in enumerate(sources)
        if source != index
        for name in ("k_proj", "v_proj", "k_norm")
    )
    return ModelDeclaration(
        ARCHITECTURE, FAMILY, sizes.vocab_size, sizes.max_positions, dtype, decoder, unused_tensors=unused
    )


def alone(text: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a model of text alone, of what a checkpoint that also reads images says of its text model."""
    return {**text, "architectures": [ARCHITECTURE], "model_type": "gemma4_text"}


def alone_of_unified(text: Mapping[str, Any]) -> dict[str, Any]:
    """The same where images and sounds have no towers; what the family takes otherwise is said."""
    return alone({**_UNIFIED, **_said(text)})


def _said(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says; null is nothing."""
    return {key: value for key, value in config.items() if value is not None}


def _block(index: int, source: int, sizes: Sizes, style: _Style, sight: Sight) -> DecoderBlock:
    """A block that reads the keys and values of layer `source`, which may be its own."""
    name, borrows = f"model.layers.{index}", source != index
    attention = SelfAttention(
        name=f"{name}.self_attn",
        layer=source,
        width=sizes.width,
        heads=sizes.heads,
        rope=sight.rope,
        scale=1.0,
        window=sight.window,
        qkv_bias=style.bias,
        output_bias=style.bias,
        head_norm=(sizes.eps, False),
        value_norm=True,
        keys_as_values=style.keys_as_values and sight.window is None,
        borrows=borrows,
    )
    dense = GatedMlp(
        f"{name}.mlp", sizes.width, sizes.inner_width * (2 if style.doubled and borrows else 1), style.activation
    )
    before = _norm(f"{name}.pre_feedforward_layernorm", sizes)
    mlp = dense if style.routing is None else _beside_experts(name, dense, before, sizes, style, style.routing)
    size = style.layer_input
    return DecoderBlock(
        before_attention=_norm(f"{name}.input_layernorm", sizes),
        attention=attention,
        after_attention=_norm(f"{name}.post_attention_layernorm", sizes),
        before_mlp=before if style.routing is None else None,
        mlp=mlp,
        after_mlp=_norm(f"{name}.post_feedforward_layernorm", sizes),
        layer_input=LayerInput(name, index, sizes.width, size, style.activation, sizes.eps) if size else None,
        scalar=f"{name}.layer_scalar",
    )


def _beside_experts(
    name: str, dense: GatedMlp, before: RmsNorm, sizes: Sizes, style: _Style, routing: Routing
) -> DenseBesideExperts:
    experts = MixtureOfExperts(
        name,
        sizes.width,
        style.expert_width,
        routing,
        style.activation,
        ExpertNames(router="router.proj"),
        scales="router.per_expert_scale",
    )
    return DenseBesideExperts(
        dense,
        experts,
        before_dense=before,
        after_dense=_norm(f"{name}.post_feedforward_layernorm_1", sizes),
        before_experts=_norm(f"{name}.pre_feedforward_layernorm_2", sizes),
        after_experts=_norm(f"{name}.post_feedforward_layernorm_2", sizes),
        router_norm=RmsNorm(f"{name}.router", sizes.width, sizes.eps, tensor="scale"),
    )


def _layer_inputs(sizes: Sizes, size: int, rows: int) -> LayerInputs:
    return LayerInputs(
        table="model.embed_tokens_per_layer",
        projection="model.per_layer_model_projection",
        norm="model.per_layer_projection_norm",
        vocab_size=rows,
        width=sizes.width,
        layers=sizes.layers,
        size=size,
        eps=sizes.eps,
    )


def _norm(name: str, sizes: Sizes) -> RmsNorm:
    return RmsNorm(name, sizes.width, sizes.eps)


def _read_style(reader: ConfigReader) -> _Style:
    routing, width = None, 0
    if reader.flag("enable_moe_block", False):
        routing = read_routing(reader, "num_experts", defaults=(None, None), chosen="top_k_experts", renormalise=True)
        width = reader.integer("moe_intermediate_size")
    # Files of models without these say what they would be.
    reader.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "vocab_size_per_layer_input")
    return _Style(
        read_activation(reader, "hidden_activation", "gelu_pytorch_tanh"),
        reader.flag("attention_bias", False),
        reader.flag("attention_k_eq_v", False),
        reader.flag("use_double_wide_mlp", False),
        reader.count("hidden_size_per_layer_input", 256),
        routing,
        width,
    )


def _read_rows(reader: ConfigReader, vocab_size: int) -> int:
    """Rows of the table of what tokens give layers."""
    rows = reader.integer("vocab_size_per_layer_input", 262144)
    if rows < vocab_size:
        raise ModelFileError(
            f"config.json has vocab_size_per_layer_input = {rows}, but {vocab_size} tokens (vocab_size)."
        )
    return rows


def _read_slides(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers have a window; the last has none."""
    slides = read_layer_types(reader, layers)
    if slides is None:
        return tuple((index + 1) % _PATTERN != 0 and index + 1 < layers for index in range(layers))
    if slides[-1]:
        raise reader.refuse("layer_types", "sliding_attention for the last layer", "it must be full_attention")
    return slides


def _read_wide_heads(reader: ConfigReader, narrow: HeadLayout, slides: Sequence[bool], style: _Style) -> HeadLayout:
    """Heads of the layers without a window, which newer files have layer by layer."""
    by_layer = reader.mapping("per_layer_config")
    reader.ignore("global_head_dim", "num_global_key_value_heads")
    if by_layer is None:
        size = reader.integer("global_head_dim", 512)
        kv_heads = reader.integer("num_global_key_value_heads", narrow.kv_heads)
        return _heads(narrow, kv_heads if style.keys_as_values else narrow.kv_heads, size)
    # transformers writes all numbers of layers with as many digits.
    found = {
        key.lstrip("0") or "0": dict(value) if isinstance(value, Mapping) else {} for key, value in by_layer.items()
    }
    wide = {str(index) for index, slide in enumerate(slides) if not slide}
    first = next(iter(found.values()), {})
    if found.keys() != wide or any(each != first or not each.keys() <= set(_WIDER) for each in found.values()):
        hint = f"implemented: the same {' and '.join(_WIDER)} for each full_attention layer, and for no other"
        raise reader.refuse("per_layer_config", by_layer, hint)
    own = ConfigReader(first, reader.family, "per_layer_config.")
    return _heads(narrow, own.integer(_WIDER[1], narrow.kv_heads), own.integer(_WIDER[0], narrow.head_dim))


def _heads(narrow: HeadLayout, kv_heads: int, size: int) -> HeadLayout:
    if narrow.query_heads % kv_heads or size % 2:
        raise ModelFileError(
            f"config.json has full_attention layers of {kv_heads} KV heads of {size} columns for {narrow.query_heads} "
            "query heads; KV heads must divide these, and columns must be even."
        )
    return HeadLayout(narrow.query_heads, kv_heads, size)


def _read_sources(reader: ConfigReader, slides: Sequence[bool]) -> list[int]:
    """Whose keys and values each layer reads: the last ones borrow those of the last of their kind before them."""
    own = len(slides) - reader.count("num_kv_shared_layers", 0)
    if own < len(slides) and not set(slides) <= set(slides[: max(own, 0)]):
        raise ModelFileError(
            f"config.json has num_kv_shared_layers = {len(slides) - own} of {len(slides)} layers, which leaves no "
            "layer of their kind whose keys and values they could read."
        )
    last = {slide: index for index, slide in enumerate(slides[:own])}
    return [index if index < own else last[slide] for index, slide in enumerate(slides)]
