"""T5 and its relatives: encoder-decoders whose attention knows positions by biases for distances."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.kernels.signature import HeadLayout
from penstock.layers.attention import AttentionNames, Buckets, SelfAttention
from penstock.layers.cross_attention import CrossAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.mlp import GatedMlp, GatedNames, PlainMlp
from penstock.layers.norm import RmsNorm
from penstock.models.config import ConfigReader, read_dtype
from penstock.models.declaration import ModelDeclaration

T5 = "T5ForConditionalGeneration"
MT5 = "MT5ForConditionalGeneration"
UMT5 = "UMT5ForConditionalGeneration"
# Distances have no end, and no file says where a source or an output should.
_LONGEST = 4096
_MOST_LAYERS = 4096
_TRAINED = 512
_NAMES = AttentionNames("q", "k", "v", output="o")
_GATED = GatedNames("wi_0", "wi_1", down="wo")
_INERT = (
    *("architectures", "model_type", "is_encoder_decoder", "dropout_rate", "initializer_factor", "classifier_dropout"),
    *("is_gated_act", "dense_act_fn", "output_past", "gradient_checkpointing", "num_hidden_layers", "tokenizer_class"),
)
# Copies of what is shared, and a table of distances to a source, which is not used.
_UNUSED = (
    "*encoder.embed_tokens.weight",
    "*decoder.embed_tokens.weight",
    "*EncDecAttention.relative_attention_bias.weight",
)
_SHARED = (("shared.", "encoder.embed_tokens."), ("shared.", "decoder.embed_tokens."))


def declare_t5(config: Mapping[str, Any]) -> ModelDeclaration:
    """Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, 2020."""
    return _declare(config, T5, "t5")


def declare_mt5(config: Mapping[str, Any]) -> ModelDeclaration:
    """Xue et al., mT5, 2021."""
    return _declare(config, MT5, "mt5")


def declare_umt5(config: Mapping[str, Any]) -> ModelDeclaration:
    """Chung et al., UniMax, 2023: mT5 with a table of distances for each layer."""
    return _declare(config, UMT5, "umt5")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What both stacks have alike: whether MLPs are `gated`, and whether layers have `own_tables` of biases."""

    width: int
    inner: int
    heads: HeadLayout
    eps: float
    buckets: int
    farthest: int
    gated: bool
    own_tables: bool

    def block(self, stack: str, layers: int, index: int) -> DecoderBlock:
        """A block of "encoder" or "decoder", each with its norms before what they are of."""
        name, decodes = f"{stack}.block.{index}", stack == "decoder"
        mlp = f"{name}.layer.{2 if decodes else 1}"
        table = f"{stack}.block.{index if self.own_tables else 0}.layer.0.SelfAttention.relative_attention_bias"
        attention = SelfAttention(
            f"{name}.layer.0.SelfAttention",
            index,
            self.width,
            self.heads,
            None,
            1.0,
            mutual=not decodes,
            bias=Buckets(table, self.buckets, self.farthest),
            names=_NAMES,
        )
        cross = CrossAttention(
            f"{name}.layer.1.EncDecAttention", layers + index, self.width, self.heads, 1.0, names=_NAMES
        )
        dense = f"{mlp}.DenseReluDense"
        return DecoderBlock(
            before_attention=self.norm(f"{name}.layer.0.layer_norm"),
            attention=attention,
            before_mlp=self.norm(f"{mlp}.layer_norm"),
            mlp=GatedMlp(dense, self.width, self.inner, "gelu_tanh", names=_GATED)
            if self.gated
            else PlainMlp(dense, self.width, self.inner, "relu", "wi", "wo", biased=False),
            cross=cross if decodes else None,
            before_cross=self.norm(f"{name}.layer.1.layer_norm") if decodes else None,
        )

    def norm(self, name: str) -> RmsNorm:
        return RmsNorm(name, self.width, self.eps)


def _declare(config: Mapping[str, Any], architecture: str, family: str) -> ModelDeclaration:
    reader = ConfigReader(config, family)
    vocabulary, heads = reader.integer("vocab_size"), reader.integer("num_heads")
    sizes = _Sizes(
        width=reader.integer("d_model"),
        inner=reader.integer("d_ff"),
        heads=HeadLayout(heads, heads, reader.integer("d_kv")),
        eps=reader.number("layer_norm_epsilon", 1e-6),
        buckets=reader.integer("relative_attention_num_buckets", 32),
        farthest=reader.integer("relative_attention_max_distance", 128),
        gated=reader.choice("feed_forward_proj", ("relu", "gated-gelu"), "relu") == "gated-gelu",
        own_tables=architecture == UMT5,
    )
    _check_buckets(sizes)
    layers = reader.integer("num_layers", largest=_MOST_LAYERS)
    counts = {"encoder": layers, "decoder": reader.integer("num_decoder_layers", layers, largest=_MOST_LAYERS)}
    trained = reader.integer("n_positions", _TRAINED)
    tied = reader.flag("tie_word_embeddings", True)
    scaled = reader.flag("scale_decoder_outputs", tied and architecture != MT5)
    dtype = read_dtype(reader)
    reader.ignore(*_INERT)
    reader.refuse_unread()
    encoder, decoder = (
        Decoder(
            vocabulary,
            sizes.width,
            tuple(sizes.block(stack, count, index) for index in range(count)),
            sizes.norm(f"{stack}.final_layer_norm"),
            embedding="shared",
            head=None if tied else "lm_head",
            generates=stack == "decoder",
            states_scale=sizes.width**-0.5 if scaled else None,
        )
        for stack, count in counts.items()
    )
    longest = max(_LONGEST, trained)
    note = f"The model was trained with {trained} tokens at most; of longer sources it may make less sense."
    return ModelDeclaration(
        architecture,
        family,
        vocabulary,
        longest,
        dtype,
        decoder,
        encoder=encoder,
        max_source=longest,
        tensor_prefixes=_SHARED,
        unused_tensors=_UNUSED,
        notes=(note,),
    )


def _check_buckets(sizes: _Sizes) -> None:
    """Raise ModelFileError where no distances are left for buckets that grow, in the one stack or the other."""
    if sizes.buckets < 4 or sizes.farthest <= sizes.buckets // 2:
        raise ModelFileError(
            f"config.json has relative_attention_num_buckets = {sizes.buckets} and relative_attention_max_distance = "
            f"{sizes.farthest}, but there must be at least 4 buckets, and distances of more than half their number."
        )
