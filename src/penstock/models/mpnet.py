"""MPNet (Song et al., 2020): BERT whose scores get something by distances, the same in all layers."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.attention import AttentionNames, Buckets
from penstock.layers.decoder import DecoderBlock, Table
from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm
from penstock.models.common import check_positions, read_heads
from penstock.models.config import ConfigReader, read_activation, read_dtype
from penstock.models.declaration import ModelDeclaration
from penstock.models.encoders import MutualStyle, encoder_of, summed_block

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

    style = MutualStyle(_NAMES, distances=buckets)

    def block(index: int) -> DecoderBlock:
        name = f"mpnet.encoder.layer.{index}"
        return summed_block(
            index,
            f"{name}.attention",
            width,
            layout,
            style,
            PlainMlp(name, width, inner, activation, "intermediate.dense", "output.dense"),
            (LayerNorm(f"{name}.attention.LayerNorm", width, eps), LayerNorm(f"{name}.output.LayerNorm", width, eps)),
        )

    count = positions - _SKIPPED
    encoder = encoder_of(
        vocabulary,
        width,
        (layers, block),
        "mpnet.",
        LayerNorm("mpnet.embeddings.LayerNorm", width, eps),
        positions=Table("mpnet.embeddings.position_embeddings", count, _SKIPPED),
    )
    return ModelDeclaration(ARCHITECTURE, reader.family, vocabulary, count, dtype, encoder, unused_tensors=_UNUSED)
