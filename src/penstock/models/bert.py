"""BERT and those of its form: every token sees all others, and norms are of the residual stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.layers.attention import AttentionNames
from penstock.layers.decoder import DecoderBlock, Table
from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm
from penstock.models.common import check_positions, read_heads
from penstock.models.config import ConfigReader, read_activation, read_dtype
from penstock.models.declaration import ModelDeclaration
from penstock.models.encoders import MutualStyle, encoder_of, summed_block

BERT = "BertModel"
ROBERTA = "RobertaModel"
XLM_ROBERTA = "XLMRobertaModel"
CAMEMBERT = "CamembertModel"
# What is there for other tasks, and what older programs stored beside the weights.
# And the projection of ColBERT's, which is behind the hidden states.
_UNUSED = ("linear.weight", "*pooler.*", "*position_ids", "cls.*", "lm_head.*", "*lm_head.*")
_NAMES = AttentionNames("self.query", "self.key", "self.value", output="output.dense")


@dataclass(frozen=True, slots=True)
class _Form:
    """What its relatives have otherwise than BERT: RoBERTa counts positions from behind that of padding."""

    architecture: str
    family: str
    counts_padding: bool = False


def declare_bert(config: Mapping[str, Any]) -> ModelDeclaration:
    """Devlin et al., BERT, 2019: learned positions, two types of tokens."""
    return _declare(config, _Form(BERT, "bert"))


def declare_roberta(config: Mapping[str, Any]) -> ModelDeclaration:
    """Liu et al., RoBERTa, 2019."""
    return _declare(config, _Form(ROBERTA, "roberta", counts_padding=True))


def declare_xlm_roberta(config: Mapping[str, Any]) -> ModelDeclaration:
    """Conneau et al., XLM-R, 2020."""
    return _declare(config, _Form(XLM_ROBERTA, "xlm-roberta", counts_padding=True))


def declare_camembert(config: Mapping[str, Any]) -> ModelDeclaration:
    """Martin et al., CamemBERT, 2020."""
    return _declare(config, _Form(CAMEMBERT, "camembert", counts_padding=True))


def _declare(config: Mapping[str, Any], form: _Form) -> ModelDeclaration:
    reader = ConfigReader(config, form.family)
    width, layout = read_heads(reader)
    vocabulary, layers = reader.integer("vocab_size"), reader.integer("num_hidden_layers", largest=4096)
    inner, eps = reader.integer("intermediate_size"), reader.number("layer_norm_eps", 1e-12)
    activation = read_activation(reader, "hidden_act", "gelu")
    positions, types = reader.integer("max_position_embeddings", 512), reader.integer("type_vocab_size", 2)
    reader.choice("position_embedding_type", ("absolute",), "absolute")
    skipped = reader.count("pad_token_id", 1) + 1 if form.counts_padding else 0
    check_positions(positions, skipped)
    for key in ("is_decoder", "add_cross_attention"):
        if reader.flag(key, False):
            raise reader.refuse(key, True, "implemented: false")
    dtype = read_dtype(reader)
    # Dropout, and what classifies.
    reader.ignore("architectures", "model_type", "hidden_dropout_prob", "attention_probs_dropout_prob")
    reader.ignore("classifier_dropout", "gradient_checkpointing")
    reader.ignore("tie_word_embeddings", "use_return_dict")
    reader.refuse_unread()

    def block(index: int) -> DecoderBlock:
        name = f"bert.encoder.layer.{index}"
        return summed_block(
            index,
            f"{name}.attention",
            width,
            layout,
            MutualStyle(_NAMES),
            PlainMlp(name, width, inner, activation, "intermediate.dense", "output.dense"),
            (
                LayerNorm(f"{name}.attention.output.LayerNorm", width, eps),
                LayerNorm(f"{name}.output.LayerNorm", width, eps),
            ),
        )

    encoder = encoder_of(
        vocabulary,
        width,
        (layers, block),
        "bert.",
        LayerNorm("bert.embeddings.LayerNorm", width, eps),
        positions=Table("bert.embeddings.position_embeddings", positions - skipped, skipped),
        types=Table("bert.embeddings.token_type_embeddings", types),
    )
    return ModelDeclaration(
        form.architecture, form.family, vocabulary, positions - skipped, dtype, encoder, unused_tensors=_UNUSED
    )
