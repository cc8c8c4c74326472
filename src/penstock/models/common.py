"""What families of the Llama lineage have in common: sizes read from config.json and the block they build."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import ModelFileError
from penstock.kernels.signature import ActivationName, HeadLayout, RopeSpec
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.models.config import ConfigReader

# Far above any model; a file that asks for more would keep the declaration building layers for hours.
_MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions that every family has; widths are in columns."""

    vocab_size: int
    width: int
    inner_width: int
    layers: int
    heads: HeadLayout
    max_positions: int
    eps: float


def read_sizes(reader: ConfigReader, *, kv_heads: int | None, head_dim: int | None, max_positions: int) -> Sizes:
    """Read dimensions; the arguments are the family's defaults (None: one KV head per head, width / heads)."""
    width = reader.integer("hidden_size")
    query_heads = reader.integer("num_attention_heads")
    kv_count = reader.integer("num_key_value_heads", kv_heads or query_heads)
    if query_heads % kv_count:
        raise ModelFileError(
            f"config.json has num_attention_heads = {query_heads}, which is not a multiple of "
            f"num_key_value_heads = {kv_count}."
        )
    size = reader.integer("head_dim", head_dim or max(1, width // query_heads))
    if size % 2:
        raise ModelFileError(f"config.json has head_dim = {size}, but rotary embeddings need an even number.")
    return Sizes(
        vocab_size=reader.integer("vocab_size"),
        width=width,
        inner_width=reader.integer("intermediate_size"),
        layers=reader.integer("num_hidden_layers", largest=_MOST_LAYERS),
        heads=HeadLayout(query_heads, kv_count, size),
        max_positions=reader.integer("max_position_embeddings", max_positions),
        eps=reader.number("rms_norm_eps", 1e-6),
    )


@dataclass(frozen=True, slots=True)
class BlockStyle:
    """Where families of the Llama lineage differ within a block."""

    activation: ActivationName
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norm: bool = False


def llama_decoder(
    sizes: Sizes, style: BlockStyle, rope: RopeSpec, windows: Sequence[int | None], *, tied: bool
) -> Decoder:
    """A decoder of pre-normalised blocks, `windows` saying for each layer how far back it sees."""
    blocks = tuple(
        llama_block(f"model.layers.{index}", index, sizes, style, rope, window) for index, window in enumerate(windows)
    )
    norm = RmsNorm("model.norm", sizes.width, sizes.eps)
    return Decoder(sizes.vocab_size, sizes.width, blocks, norm, head=None if tied else "lm_head")


def llama_block(
    name: str, index: int, sizes: Sizes, style: BlockStyle, rope: RopeSpec, window: int | None
) -> DecoderBlock:
    """A pre-normalised block whose tensors' names begin with `name`; `index` is that of its KV planes."""
    attention = SelfAttention(
        name=f"{name}.self_attn",
        layer=index,
        width=sizes.width,
        heads=sizes.heads,
        rope=rope,
        scale=sizes.heads.head_dim**-0.5,
        window=window,
        qkv_bias=style.qkv_bias,
        output_bias=style.output_bias,
        head_norm=(sizes.eps, False) if style.head_norm else None,
    )
    return DecoderBlock(
        before_attention=RmsNorm(f"{name}.input_layernorm", sizes.width, sizes.eps),
        attention=attention,
        before_mlp=RmsNorm(f"{name}.post_attention_layernorm", sizes.width, sizes.eps),
        mlp=GatedMlp(f"{name}.mlp", sizes.width, sizes.inner_width, style.activation, style.mlp_bias, style.mlp_bias),
    )
