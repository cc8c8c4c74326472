"""BART and its relatives: encoder-decoders with layer norms, and positions that are learned or sines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock.core.errors import ModelFileError
from penstock.kernels.places import Sines
from penstock.kernels.signature import HeadLayout, PlainActivationName
from penstock.layers.attention import AttentionNames, SelfAttention
from penstock.layers.cross_attention import CrossAttention
from penstock.layers.decoder import Decoder, DecoderBlock, Table
from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm, Norm
from penstock.models.common import read_heads
from penstock.models.config import ConfigReader, read_dtype, read_plain_activation
from penstock.models.declaration import ModelDeclaration

BART = "BartForConditionalGeneration"
MBART = "MBartForConditionalGeneration"
MARIAN = "MarianMTModel"
PEGASUS = "PegasusForConditionalGeneration"
M2M_100 = "M2M100ForConditionalGeneration"
# Rows of learned tables in front of those of positions.
_SKIPPED = 2
_EPS = 1e-5
_MOST_LAYERS = 4096
_NAMES = AttentionNames(output="out_proj")
# Copies of what is shared, or computed; zeros that are added to logits, and what other tasks have.
_EMBEDDINGS = ("*encoder.embed_tokens.weight", "*decoder.embed_tokens.weight")
_COMPUTED = ("*embed_positions.weight", "*embed_positions.weights")
_UNUSED = ("final_logits_bias", "*classification_head.*", "*.version")
# How a tensor's beginnings may stand for each other where one of the shared embeddings' names was saved.
_SHARED = tuple(
    ("model.shared.", f"{prefix}{stack}.embed_tokens.") for prefix in ("model.", "") for stack in ("encoder", "decoder")
)
_APART = (("model.encoder.embed_tokens.", "model.shared."), ("model.decoder.embed_tokens.", "model.shared."))
# Training, tasks, and what configurations of fairseq and Marian say of the architectures themselves.
_INERT = (
    *("architectures", "model_type", "is_encoder_decoder", "num_hidden_layers", "init_std", "dropout"),
    *("activation_dropout", "classifier_dropout", "classif_dropout", "encoder_layerdrop", "decoder_layerdrop"),
    *("gradient_checkpointing", "extra_pos_embeddings", "force_bos_token_to_be_generated", "output_past", "num_labels"),
    *("add_final_layer_norm", "add_bias_logits", "normalize_before", "normalize_embedding"),
    *("static_position_embeddings", "tokenizer_class", "language", "save_step"),
)

Positions = Literal["learned", "sines", "padded sines"]
"""Padded sines count positions from behind that of padding, and spread frequencies over one column less."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Where relatives differ.

    Attributes:
        behind: whether norms are of the residual stream with what was made added, and there is none at the end.
        embedding_norm: whether embeddings are normed.
        scaled: whether embeddings of tokens are multiplied by the root of the width where a file does not say it.
    """

    architecture: str
    family: str
    positions: Positions
    behind: bool
    embedding_norm: bool
    activation: str = "gelu"
    scaled: bool = False


def declare_bart(config: Mapping[str, Any]) -> ModelDeclaration:
    """Lewis et al., BART, 2020."""
    return _declare(config, _Form(BART, "bart", "learned", behind=True, embedding_norm=True))


def declare_mbart(config: Mapping[str, Any]) -> ModelDeclaration:
    """Liu et al., Multilingual Denoising Pre-training for Neural Machine Translation, 2020; mBART-50, 2020."""
    return _declare(config, _Form(MBART, "mbart", "learned", behind=False, embedding_norm=True))


def declare_marian(config: Mapping[str, Any]) -> ModelDeclaration:
    """Junczys-Dowmunt et al., Marian, 2018; the OPUS-MT models of translation."""
    return _declare(config, _Form(MARIAN, "marian", "sines", behind=True, embedding_norm=False))


def declare_pegasus(config: Mapping[str, Any]) -> ModelDeclaration:
    """Zhang et al., PEGASUS, 2020."""
    return _declare(config, _Form(PEGASUS, "pegasus", "sines", behind=False, embedding_norm=False))


def declare_m2m_100(config: Mapping[str, Any]) -> ModelDeclaration:
    """Fan et al., Beyond English-Centric Multilingual Machine Translation, 2020; NLLB, 2022."""
    form = _Form(M2M_100, "m2m-100", "padded sines", False, False, "relu", scaled=True)
    return _declare(config, form)


@dataclass(frozen=True, slots=True)
class _Stack:
    """One of the two stacks: its name in the checkpoint, and what it is made of."""

    name: str
    width: int
    heads: HeadLayout
    inner: int
    layers: int
    activation: PlainActivationName
    behind: bool

    @property
    def decodes(self) -> bool:
        return self.name == "model.decoder"

    def block(self, index: int) -> DecoderBlock:
        name, decodes = f"{self.name}.layers.{index}", self.decodes
        scale = self.heads.head_dim**-0.5
        attention = SelfAttention(
            f"{name}.self_attn",
            index,
            self.width,
            self.heads,
            None,
            scale,
            qkv_bias=True,
            output_bias=True,
            mutual=not decodes,
            names=_NAMES,
        )
        cross = CrossAttention(
            f"{name}.encoder_attn", self.layers + index, self.width, self.heads, scale, biased=True, names=_NAMES
        )
        norms: tuple[Norm | None, ...] = (
            self.norm(f"{name}.self_attn_layer_norm"),
            self.norm(f"{name}.encoder_attn_layer_norm") if decodes else None,
            self.norm(f"{name}.final_layer_norm"),
        )
        before, after = ((None,) * 3, norms) if self.behind else (norms, (None,) * 3)
        return DecoderBlock(
            before_attention=before[0],
            attention=attention,
            before_mlp=before[2],
            mlp=PlainMlp(name, self.width, self.inner, self.activation, "fc1", "fc2"),
            after_attention=after[0],
            after_mlp=after[2],
            summed=self.behind,
            cross=cross if decodes else None,
            before_cross=before[1],
            after_cross=after[1],
        )

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.width, _EPS)


def _read_stack(reader: ConfigReader, kind: str, activation: PlainActivationName, behind: bool) -> _Stack:
    width, heads = read_heads(reader, "d_model", f"{kind}_attention_heads")
    return _Stack(
        f"model.{kind}",
        width,
        heads,
        reader.integer(f"{kind}_ffn_dim"),
        reader.integer(f"{kind}_layers", largest=_MOST_LAYERS),
        activation,
        behind,
    )


def _declare(config: Mapping[str, Any], form: _Form) -> ModelDeclaration:
    reader = ConfigReader(config, form.family)
    width, count = reader.integer("d_model"), reader.integer("max_position_embeddings", 1024)
    activation = read_plain_activation(reader, "activation_function", form.activation)
    stacks = [_read_stack(reader, kind, activation, form.behind) for kind in ("encoder", "decoder")]
    scale = width**0.5 if reader.flag("scale_embedding", form.scaled) else None
    shared, vocabularies = _read_vocabularies(reader, form)
    tied = reader.flag("tie_word_embeddings", True)
    # Where nothing is tied, files have an embedding for each stack, unless they have one alone.
    one = shared and tied
    sines = _read_sines(reader, form, width, count)
    dtype = read_dtype(reader)
    reader.ignore(*_INERT)
    reader.refuse_unread()
    encoder, decoder = (
        Decoder(
            vocabulary,
            width,
            tuple(map(stack.block, range(stack.layers))),
            None if form.behind else stack.norm(f"{stack.name}.layer_norm"),
            embedding="model.shared" if one else f"{stack.name}.embed_tokens",
            head=None if tied else "lm_head",
            embedding_scale=scale,
            positions=sines or Table(f"{stack.name}.embed_positions", count, _SKIPPED),
            embedding_norm=stack.norm(f"{stack.name}.layernorm_embedding") if form.embedding_norm else None,
            generates=stack.decodes,
            logit_bias=None if form.architecture == M2M_100 else "final_logits_bias",
        )
        for stack, vocabulary in zip(stacks, vocabularies, strict=True)
    )
    return ModelDeclaration(
        form.architecture,
        form.family,
        vocabularies[1],
        count,
        dtype,
        decoder,
        encoder=encoder,
        max_source=count,
        tensor_prefixes=_SHARED if one else _APART if shared else (),
        unused_tensors=(*_UNUSED, *(_EMBEDDINGS if one else ("*shared.weight",)), *(_COMPUTED if sines else ())),
    )


def _read_vocabularies(reader: ConfigReader, form: _Form) -> tuple[bool, tuple[int, int]]:
    """Whether both stacks have one embedding, and the vocabularies of sources and of outputs."""
    sources = reader.integer("vocab_size")
    if form.architecture != MARIAN:
        return True, (sources, sources)
    shared = reader.flag("share_encoder_decoder_embeddings", True)
    outputs = reader.integer("decoder_vocab_size", sources)
    if shared and outputs != sources:
        raise ModelFileError(
            f"config.json has vocab_size = {sources} and decoder_vocab_size = {outputs}, but "
            "share_encoder_decoder_embeddings = true."
        )
    return shared, (sources, outputs)


def _read_sines(reader: ConfigReader, form: _Form, width: int, count: int) -> Sines | None:
    """How positions are computed; None where they are learned."""
    if form.positions == "learned":
        return None
    if form.positions == "sines":
        return Sines(width, count, width // 2)
    return Sines(width, count, width // 2 - 1, reader.count("pad_token_id", 1) + 1)
