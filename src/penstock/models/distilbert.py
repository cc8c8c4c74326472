"""DistilBERT (Sanh et al., 2019): BERT without types of tokens, by other names."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.attention import AttentionNames
from penstock.layers.decoder import DecoderBlock, Table
from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm
from penstock.models.common import read_heads
from penstock.models.config import ConfigReader, read_activation, read_dtype
from penstock.models.declaration import ModelDeclaration
from penstock.models.encoders import MutualStyle, encoder_of, summed_block

ARCHITECTURE = "DistilBertModel"
_NAMES = AttentionNames("q_lin", "k_lin", "v_lin", output="out_lin")
_UNUSED = ("vocab_*", "pre_classifier.*", "classifier.*", "*position_ids")
_EPS = 1e-12


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Positions are learned, or sinusoids that files have as if they were."""
    reader = ConfigReader(config, "distilbert")
    width, layout = read_heads(reader, "dim", "n_heads", defaults=(768, 12))
    vocabulary, layers = reader.integer("vocab_size", 30522), reader.integer("n_layers", 6, largest=4096)
    inner, positions = reader.integer("hidden_dim", 3072), reader.integer("max_position_embeddings", 512)
    activation, dtype = read_activation(reader, "activation", "gelu"), read_dtype(reader)
    reader.ignore("architectures", "model_type", "sinusoidal_pos_embds", "tie_weights_", "tie_word_embeddings")
    reader.ignore("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout", "output_past")
    reader.refuse_unread()

    def block(index: int) -> DecoderBlock:
        name = f"distilbert.transformer.layer.{index}"
        return summed_block(
            index,
            f"{name}.attention",
            width,
            layout,
            MutualStyle(_NAMES),
            PlainMlp(f"{name}.ffn", width, inner, activation, "lin1", "lin2"),
            (LayerNorm(f"{name}.sa_layer_norm", width, _EPS), LayerNorm(f"{name}.output_layer_norm", width, _EPS)),
        )

    encoder = encoder_of(
        vocabulary,
        width,
        (layers, block),
        "distilbert.",
        LayerNorm("distilbert.embeddings.LayerNorm", width, _EPS),
        positions=Table("distilbert.embeddings.position_embeddings", positions),
    )
    return ModelDeclaration(ARCHITECTURE, reader.family, vocabulary, positions, dtype, encoder, unused_tensors=_UNUSED)
