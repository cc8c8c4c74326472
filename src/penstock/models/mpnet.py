"""MPNet (Song et al., 2020): BERT whose scores get something by distances, the same in all layers."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.attention import AttentionNames, Buckets, SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock, Table
from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm
from penstock.models.common import check_positions, read_heads
from penstock.models.config import ConfigReader, read_activation, read_dtype
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "MPNetModel"
_NAMES = AttentionNames("attn.q", "attn.k", "attn.v", output="attn.o")
_UNUSED = ("*pooler.*", "*position_ids", "lm_head.*", "classifier.*")
# Its embeddings have padding at 1, whatever the configuration says.
_SKIPPED = 2
_FARTHEST = 128


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Positions are learned besides, and counted from behind that of padding."""
    reader = ConfigReader(config, "mpnet")
    width, layout = read_heads(reader)
    vocabulary, layers = reader.integer("vocab_size"), reader.integer("num_hidden_layers", largest=4096)
    inner, eps = reader.integer("intermediate_size"), reader.number("layer_norm_eps", 1e-12)
    activation, dtype = read_activation(reader, "hidden_act", "gelu"), read_dtype(reader)
    positions = reader.integer("max_position_embeddings", 512)
    check_positions(positions, _SKIPPED)
    buckets = Buckets(
        "mpnet.encoder.relative_attention_bias", reader.integer("relative_attention_num_buckets", 32), _FARTHEST
    )
    if buckets.count < 4 or buckets.count % 4:
        raise reader.refuse("relative_attention_num_buckets", buckets.count, "implemented: multiples of 4")
    reader.ignore("architectures", "model_type", "hidden_dropout_prob", "attention_probs_dropout_prob")
    reader.ignore("tie_word_embeddings", "gradient_checkpointing")
    reader.refuse_unread()

    def block(index: int) -> DecoderBlock:
        name = f"mpnet.encoder.layer.{index}"
        return DecoderBlock(
            before_attention=None,
            attention=SelfAttention(
                f"{name}.attention",
                index,
                width,
                layout,
                None,
                layout.head_dim**-0.5,
                qkv_bias=True,
                output_bias=True,
                mutual=True,
                bias=buckets,
                names=_NAMES,
            ),
            before_mlp=None,
            mlp=PlainMlp(name, width, inner, activation, "intermediate.dense", "output.dense"),
            after_attention=LayerNorm(f"{name}.attention.LayerNorm", width, eps),
            after_mlp=LayerNorm(f"{name}.output.LayerNorm", width, eps),
            summed=True,
        )

    count = positions - _SKIPPED
    encoder = Decoder(
        vocabulary,
        width,
        tuple(map(block, range(layers))),
        None,
        embedding="mpnet.embeddings.word_embeddings",
        positions=Table("mpnet.embeddings.position_embeddings", count, _SKIPPED),
        embedding_norm=LayerNorm("mpnet.embeddings.LayerNorm", width, eps),
        generates=False,
    )
    return ModelDeclaration(ARCHITECTURE, reader.family, vocabulary, count, dtype, encoder, unused_tensors=_UNUSED)
