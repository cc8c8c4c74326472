"""ModernBERT (Warner et al., 2024): rotary positions, gates, norms before; most layers see a window on both sides."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.attention import AttentionNames, SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.mlp import GatedMlp, GatedNames
from penstock.layers.norm import LayerNorm
from penstock.models.common import read_heads
from penstock.models.config import ConfigReader, read_activation, read_dtype, read_layer_types, read_ropes_by_type
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "ModernBertModel"
_ATTENTION = AttentionNames(fused="Wqkv", output="Wo")
_MLP = GatedNames(fused="Wi", down="Wo")
_UNUSED = ("head.*", "decoder.*", "classifier.*")


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Each third layer, from the first on, sees all of a text; the others half of `local_attention` on each side."""
    reader = ConfigReader(config, "modernbert")
    width, layout = read_heads(reader)
    vocabulary, layers = reader.integer("vocab_size"), reader.integer("num_hidden_layers", largest=4096)
    inner, eps = reader.integer("intermediate_size"), reader.number("norm_eps", 1e-5)
    activation = read_activation(reader, "hidden_activation", "gelu")
    positions, reach = reader.integer("max_position_embeddings", 8192), reader.integer("local_attention", 128) // 2
    every, slides = reader.integer("global_attn_every_n_layers", 3), read_layer_types(reader, layers)
    slides = slides or tuple(index % every != 0 for index in range(layers))
    # Older files call the bases of both kinds by names of their own.
    older = {"rope_theta": config.get("global_rope_theta", 160000.0), "local": config.get("local_rope_theta", 10000.0)}
    ropes = read_ropes_by_type(
        ConfigReader({**older, "rope_parameters": config.get("rope_parameters")}, "modernbert"),
        layout.head_dim,
        positions,
        local_key="local",
    )
    norm_bias, attention_bias = reader.flag("norm_bias", False), reader.flag("attention_bias", False)
    mlp_bias, dtype = reader.flag("mlp_bias", False), read_dtype(reader)
    reader.ignore("global_rope_theta", "local_rope_theta", "rope_parameters", "architectures", "model_type")
    # Dropout, what classifies, and how programs compute the same.
    reader.ignore("embedding_dropout", "mlp_dropout", "decoder_bias", "classifier_pooling", "classifier_dropout")
    reader.ignore("classifier_bias", "classifier_activation", "deterministic_flash_attn", "sparse_prediction")
    reader.ignore("sparse_pred_ignore_index", "tie_word_embeddings", "reference_compile", "repad_logits_with_grad")
    reader.ignore("initializer_cutoff_factor", "layer_norm_eps", "position_embedding_type")
    reader.refuse_unread()

    def norm(name: str) -> LayerNorm:
        return LayerNorm(f"model.{name}", width, eps, biased=norm_bias)

    def block(index: int) -> DecoderBlock:
        name = f"layers.{index}"
        return DecoderBlock(
            # What comes out of the embeddings is normed already.
            norm(f"{name}.attn_norm") if index else None,
            SelfAttention(
                f"model.{name}.attn",
                index,
                width,
                layout,
                ropes[0] if slides[index] else ropes[1],
                layout.head_dim**-0.5,
                window=reach + 1 if slides[index] else None,
                qkv_bias=attention_bias,
                output_bias=attention_bias,
                fused=True,
                mutual=True,
                names=_ATTENTION,
            ),
            norm(f"{name}.mlp_norm"),
            GatedMlp(f"model.{name}.mlp", width, inner, activation, mlp_bias, mlp_bias, fused=True, names=_MLP),
        )

    encoder = Decoder(
        vocabulary,
        width,
        tuple(map(block, range(layers))),
        norm("final_norm"),
        embedding="model.embeddings.tok_embeddings",
        embedding_norm=norm("embeddings.norm"),
        generates=False,
    )
    return ModelDeclaration(ARCHITECTURE, reader.family, vocabulary, positions, dtype, encoder, unused_tensors=_UNUSED)
