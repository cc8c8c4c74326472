"""GPT-NeoX and Pythia: layer norms, an MLP without a gate, both side by side with attention, and biases."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.attention import AttentionNames, SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm
from penstock.models.common import read_sizes
from penstock.models.config import ConfigReader, read_activation, read_dtype, read_rope
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "GPTNeoXForCausalLM"
_NAMES = AttentionNames(fused="query_key_value", output="dense")
# What older programs stored beside the weights: masks, and frequencies.
_BUFFERS = ("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq")


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """A part of each head turns.

    Files have a head's query, key and value beside each other, unless `qkv_by_head` says otherwise, as it does of GGUF
    files: there are queries of all heads first, then keys, then values.
    """
    reader = ConfigReader(_newer(config), "gpt_neox")
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=2048, eps=1e-5, eps_key="layer_norm_eps")
    bias, parallel = reader.flag("attention_bias", True), reader.flag("use_parallel_residual", True)
    activation = read_activation(reader, "hidden_act", "gelu")
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions, partial=0.25)
    by_head = reader.flag("qkv_by_head", True)
    tied, dtype = reader.flag("tie_word_embeddings", False), read_dtype(reader)
    reader.ignore("architectures", "model_type", "hidden_dropout", "classifier_dropout", "attention_dropout")
    reader.refuse_unread()

    def block(index: int) -> DecoderBlock:
        name = f"gpt_neox.layers.{index}"
        return DecoderBlock(
            LayerNorm(f"{name}.input_layernorm", sizes.width, sizes.eps),
            SelfAttention(
                f"{name}.attention",
                index,
                sizes.width,
                sizes.heads,
                rope,
                sizes.heads.head_dim**-0.5,
                qkv_bias=bias,
                output_bias=bias,
                fused=True,
                by_head=by_head,
                names=_NAMES,
            ),
            LayerNorm(f"{name}.post_attention_layernorm", sizes.width, sizes.eps),
            PlainMlp(f"{name}.mlp", sizes.width, sizes.inner_width, activation, "dense_h_to_4h", "dense_4h_to_h"),
            parallel=parallel,
        )

    blocks = tuple(block(index) for index in range(sizes.layers))
    norm = LayerNorm("gpt_neox.final_layer_norm", sizes.width, sizes.eps)
    head = None if tied else "embed_out"
    decoder = Decoder(sizes.vocab_size, sizes.width, blocks, norm, embedding="gpt_neox.embed_in", head=head)
    return ModelDeclaration(
        ARCHITECTURE, "gpt_neox", sizes.vocab_size, sizes.max_positions, dtype, decoder, unused_tensors=_BUFFERS
    )


def _newer(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with older names of rotary settings as the newer ones."""
    names = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
    return {names.get(key, key): value for key, value in config.items()}
