"""Gemma 3, text: local layers with a global one in between, four norms a block, scaled embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.kernels.signature import ActivationName
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.models.common import Sight, Sizes, read_sizes
from penstock.models.config import (
    ConfigReader,
    read_activation,
    read_dtype,
    read_layer_types,
    read_ropes_by_type,
)
from penstock.models.declaration import ModelDeclaration

FAMILY = "gemma3"
ARCHITECTURE = "Gemma3ForCausalLM"
EMBEDDING = "Gemma3TextModel"

# Published configurations leave out what the first release of the family had.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}


def declare(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """Declares a Gemma 3 checkpoint that takes text only; `path` is where in config.json its configuration is.

    EmbeddingGemma (Vera et al., 2025) sees what is behind a token, too, and half of the window on each side.
    """
    reader = ConfigReader({**_DEFAULTS, **config}, FAMILY, path)
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=131072)
    activation = read_activation(reader, "hidden_activation", "gelu_pytorch_tanh")
    bias = reader.flag("attention_bias", False)
    scale = reader.number("query_pre_attn_scalar", 256.0) ** -0.5
    softcap = reader.optional_number("attn_logit_softcapping")
    slides = _read_slides(reader, sizes.layers)
    window = reader.optional_integer("sliding_window", 4096)
    if window is None and any(slides):
        raise ModelFileError("config.json has sliding layers, but no sliding_window.")
    local, full = read_ropes_by_type(
        reader,
        sizes.heads.head_dim,
        sizes.max_positions,
        local_key="rope_local_base_freq",
        thetas=(10000.0, 1000000.0),
    )
    mutual = reader.flag("use_bidirectional_attention", False)
    if mutual and softcap is not None:
        raise reader.refuse("attn_logit_softcapping", softcap, "it is not with use_bidirectional_attention")
    if mutual and window is not None:
        window = window // 2 + 1
    tied = reader.flag("tie_word_embeddings", True)
    logit_cap = reader.optional_number("final_logit_softcapping")
    dtype = read_dtype(reader)
    reader.ignore("architectures", "model_type")
    reader.refuse_unread()

    sights = [Sight(local, window) if slide else Sight(full) for slide in slides]
    style = GemmaStyle(activation, scale, softcap, bias, head_norm=True, mutual=mutual)
    decoder = gemma_decoder(sizes, style, sights, tied=tied, logit_cap=logit_cap)
    architecture = EMBEDDING if mutual else ARCHITECTURE
    return ModelDeclaration(architecture, FAMILY, sizes.vocab_size, sizes.max_positions, dtype, decoder)


@dataclass(frozen=True, slots=True)
class GemmaStyle:
    """Where Gemma 2 and 3 differ within a block; see `SelfAttention`."""

    activation: ActivationName
    scale: float
    softcap: float | None
    bias: bool
    head_norm: bool
    mutual: bool = False


def gemma_decoder(
    sizes: Sizes, style: GemmaStyle, sights: Sequence[Sight], *, tied: bool, logit_cap: float | None
) -> Decoder:
    """A decoder with what each layer sees."""

    def block(index: int, sight: Sight) -> DecoderBlock:
        name = f"model.layers.{index}"
        attention = SelfAttention(
            name=f"{name}.self_attn",
            layer=index,
            width=sizes.width,
            heads=sizes.heads,
            rope=sight.rope,
            scale=style.scale,
            window=sight.window,
            softcap=style.softcap,
            qkv_bias=style.bias,
            output_bias=style.bias,
            head_norm=(sizes.eps, True) if style.head_norm else None,
            mutual=style.mutual,
        )
        return DecoderBlock(
            before_attention=_norm(f"{name}.input_layernorm", sizes),
            attention=attention,
            after_attention=_norm(f"{name}.post_attention_layernorm", sizes),
            before_mlp=_norm(f"{name}.pre_feedforward_layernorm", sizes),
            mlp=GatedMlp(f"{name}.mlp", sizes.width, sizes.inner_width, style.activation),
            after_mlp=_norm(f"{name}.post_feedforward_layernorm", sizes),
        )

    return Decoder(
        vocab_size=sizes.vocab_size,
        width=sizes.width,
        blocks=tuple(block(index, sight) for index, sight in enumerate(sights)),
        norm=_norm("model.norm", sizes),
        head=None if tied else "lm_head",
        embedding_scale=sizes.width**0.5,
        embedding_scale_rounded=True,
        logit_cap=logit_cap,
        generates=not style.mutual,
    )


def _norm(name: str, sizes: Sizes) -> RmsNorm:
    return RmsNorm(name, sizes.width, sizes.eps, unit_offset=True)


def _read_slides(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers are local: every one but each `sliding_window_pattern`-th, unless `layer_types` says which."""
    pattern = reader.integer("sliding_window_pattern", 6)
    slides = read_layer_types(reader, layers)
    return slides if slides is not None else tuple((index + 1) % pattern != 0 for index in range(layers))
