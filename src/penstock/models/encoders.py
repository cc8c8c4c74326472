"""What encoders of BERT's form have in common: blocks whose norms are of sums, and what is around them."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.kernels.places import RopeSpec
from penstock.kernels.signature import HeadLayout
from penstock.layers.attention import AttentionNames, Buckets, SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock, Table
from penstock.layers.mlp import GatedMlp, PlainMlp
from penstock.layers.norm import LayerNorm


@dataclass(frozen=True, slots=True)
class MutualStyle:
    """Where blocks of such encoders differ.

    Attributes:
        names: of the attention's tensors.
        biased: whether products of attention have biases.
        rope: how heads turn; None: they do not.
        fused: whether files have query, key and value as one tensor.
        distances: what scores get by distances; None: nothing.
    """

    names: AttentionNames
    biased: bool = True
    rope: RopeSpec | None = None
    fused: bool = False
    distances: Buckets | None = None


def summed_block(
    index: int,
    attention: str,
    width: int,
    heads: HeadLayout,
    style: MutualStyle,
    mlp: GatedMlp | PlainMlp,
    norms: tuple[LayerNorm, LayerNorm],
) -> DecoderBlock:
    """A block in which every token sees all others; `attention` is its name, `norms` are behind it and the MLP."""
    return DecoderBlock(
        before_attention=None,
        attention=SelfAttention(
            attention,
            index,
            width,
            heads,
            style.rope,
            heads.head_dim**-0.5,
            qkv_bias=style.biased,
            output_bias=style.biased,
            fused=style.fused,
            mutual=True,
            bias=style.distances,
            names=style.names,
        ),
        before_mlp=None,
        mlp=mlp,
        after_attention=norms[0],
        after_mlp=norms[1],
        summed=True,
    )


def encoder_of(
    vocabulary: int,
    width: int,
    blocks: tuple[int, Callable[[int], DecoderBlock]],
    prefix: str,
    norm: LayerNorm,
    *,
    positions: Table | None = None,
    types: Table | None = None,
) -> Decoder:
    """An encoder of a number of blocks, by index; embeddings' names begin with `prefix`, and `norm` is of their sum."""
    count, block = blocks
    return Decoder(
        vocabulary,
        width,
        tuple(map(block, range(count))),
        None,
        embedding=f"{prefix}embeddings.word_embeddings",
        positions=positions,
        types=types,
        embedding_norm=norm,
        generates=False,
    )
