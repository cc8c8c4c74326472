"""GPT-2: positions are learned; layer norms, an MLP without a gate, biases, and matrices as [inputs, outputs]."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.kernels.signature import HeadLayout
from penstock.layers.attention import AttentionNames, SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock, Table
from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm
from penstock.models.config import ConfigReader, read_activation, read_dtype
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "GPT2LMHeadModel"
_NAMES = AttentionNames(fused="c_attn", output="c_proj")
# What older programs stored beside the weights: masks.
_BUFFERS = ("*.attn.bias", "*.attn.masked_bias")


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """No context is longer than the table of positions.

    Files have matrices as [inputs, outputs], unless `matrices_across` says otherwise, as it does of GGUF files.
    """
    reader = ConfigReader(config, "gpt2")
    width, heads = reader.integer("n_embd", 768), reader.integer("n_head", 12)
    if width % (2 * heads):
        raise ModelFileError(f"config.json has n_embd = {width}, which is not an even multiple of n_head = {heads}.")
    vocabulary, layers = reader.integer("vocab_size", 50257), reader.integer("n_layer", 12, largest=4096)
    positions, eps = reader.integer("n_positions", 1024), reader.number("layer_norm_epsilon", 1e-5)
    inner = reader.optional_integer("n_inner", None) or 4 * width
    activation = read_activation(reader, "activation_function", "gelu_new")
    scaled, across = reader.flag("scale_attn_weights", True), reader.flag("matrices_across", True)
    tied, dtype = reader.flag("tie_word_embeddings", True), read_dtype(reader)
    # The longest context, once more; how scores are rounded on the way; what classifies.
    reader.ignore("n_ctx", "reorder_and_upcast_attn", "architectures", "model_type", "summary_type")
    reader.ignore("summary_use_proj", "summary_first_dropout", "summary_proj_to_labels", "summary_activation")
    reader.refuse_unread()
    layout = HeadLayout(heads, heads, width // heads)
    scale = layout.head_dim**-0.5 if scaled else 1.0

    def block(index: int) -> DecoderBlock:
        name = f"transformer.h.{index}"
        return DecoderBlock(
            LayerNorm(f"{name}.ln_1", width, eps),
            SelfAttention(
                f"{name}.attn",
                index,
                width,
                layout,
                None,
                scale,
                qkv_bias=True,
                output_bias=True,
                fused=True,
                across=across,
                names=_NAMES,
            ),
            LayerNorm(f"{name}.ln_2", width, eps),
            PlainMlp(f"{name}.mlp", width, inner, activation, "c_fc", "c_proj", across=across),
        )

    blocks = tuple(block(index) for index in range(layers))
    norm, head = LayerNorm("transformer.ln_f", width, eps), None if tied else "lm_head"
    table = Table("transformer.wpe", positions)
    decoder = Decoder(vocabulary, width, blocks, norm, embedding="transformer.wte", head=head, positions=table)
    return ModelDeclaration(ARCHITECTURE, "gpt2", vocabulary, positions, dtype, decoder, unused_tensors=_BUFFERS)
