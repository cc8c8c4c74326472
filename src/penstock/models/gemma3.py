"""Gemma 3, text: local layers with a global one in between, four norms a block, scaled embeddings."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.kernels.signature import RopeSpec
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.models.common import Sizes, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_dtype, read_layer_types, rope_spec
from penstock.models.declaration import ModelDeclaration

FAMILY = "gemma3"
ARCHITECTURE = "Gemma3ForCausalLM"
MULTIMODAL_ARCHITECTURE = "Gemma3ForConditionalGeneration"

# Published configurations leave out what the first release of the family had.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}


def declare(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """Declares a Gemma 3 checkpoint that takes text only; `path` is where in config.json its configuration is."""
    reader = ConfigReader({**_DEFAULTS, **config}, FAMILY, path)
    sizes = read_sizes(reader, kv_heads=None, head_dim=None, max_positions=131072)
    activation = read_activation(reader, "hidden_activation", "gelu_pytorch_tanh")
    bias = reader.flag("attention_bias", False)
    scale = reader.number("query_pre_attn_scalar", 256.0) ** -0.5
    softcap = reader.optional_number("attn_logit_softcapping")
    slides = _read_slides(reader, sizes.layers)
    window = reader.optional_integer("sliding_window", 4096)
    if window is None and any(slides):
        raise ModelFileError("config.json has sliding layers, but no sliding_window.")
    local, full = _read_ropes(reader, sizes)
    tied = reader.flag("tie_word_embeddings", True)
    logit_cap = reader.optional_number("final_logit_softcapping")
    dtype = read_dtype(reader)
    reader.ignore("architectures", "model_type")
    reader.refuse_unread()

    def block(index: int) -> DecoderBlock:
        name = f"model.layers.{index}"
        attention = SelfAttention(
            name=f"{name}.self_attn",
            layer=index,
            width=sizes.width,
            heads=sizes.heads,
            rope=local if slides[index] else full,
            scale=scale,
            window=window if slides[index] else None,
            softcap=softcap,
            qkv_bias=bias,
            output_bias=bias,
            head_norm=(sizes.eps, True),
        )
        return DecoderBlock(
            before_attention=_norm(f"{name}.input_layernorm", sizes),
            attention=attention,
            after_attention=_norm(f"{name}.post_attention_layernorm", sizes),
            before_mlp=_norm(f"{name}.pre_feedforward_layernorm", sizes),
            mlp=GatedMlp(f"{name}.mlp", sizes.width, sizes.inner_width, activation),
            after_mlp=_norm(f"{name}.post_feedforward_layernorm", sizes),
        )

    decoder = Decoder(
        vocab_size=sizes.vocab_size,
        width=sizes.width,
        blocks=tuple(block(index) for index in range(sizes.layers)),
        norm=_norm("model.norm", sizes),
        head=None if tied else "lm_head",
        embedding_scale=sizes.width**0.5,
        logit_cap=logit_cap,
    )
    return ModelDeclaration(ARCHITECTURE, FAMILY, sizes.vocab_size, sizes.max_positions, dtype, decoder)


def declare_multimodal(config: Mapping[str, Any]) -> ModelDeclaration:
    """The text part of a checkpoint that also reads images."""
    reader = ConfigReader(config, MULTIMODAL_ARCHITECTURE)
    text = reader.mapping("text_config")
    if text is None:
        raise ModelFileError(f"config.json has no text_config, which {MULTIMODAL_ARCHITECTURE} models need.")
    dtype = read_dtype(reader)
    tied = reader.flag("tie_word_embeddings", True)
    reader.ignore("architectures", "model_type", "vision_config")
    reader.refuse_unread()
    values = {"tie_word_embeddings": tied, **text}
    if values.get("dtype") is None and values.get("torch_dtype") is None:
        values["dtype"] = dtype
    inner = declare(values, "text_config.")
    return ModelDeclaration(
        MULTIMODAL_ARCHITECTURE,
        FAMILY,
        inner.vocab_size,
        inner.max_position_embeddings,
        inner.dtype,
        inner.decoder,
        unused_tensors=("*vision_tower.*", "*multi_modal_projector.*"),
        notes=("This checkpoint also reads images; only its text model is served.",),
    )


def _norm(name: str, sizes: Sizes) -> RmsNorm:
    return RmsNorm(name, sizes.width, sizes.eps, unit_offset=True)


def _read_slides(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers are local: every one but each `sliding_window_pattern`-th, unless `layer_types` says which."""
    pattern = reader.integer("sliding_window_pattern", 6)
    slides = read_layer_types(reader, layers)
    return slides if slides is not None else tuple((index + 1) % pattern != 0 for index in range(layers))


def _read_ropes(reader: ConfigReader, sizes: Sizes) -> tuple[RopeSpec, RopeSpec]:
    """Rotary settings of local and of global layers; only the latter are scaled by the older `rope_scaling`."""
    by_type = reader.mapping("rope_parameters") or {}
    by_type_reader = ConfigReader(by_type, FAMILY, "rope_parameters.")
    scaling = reader.mapping("rope_scaling") or {}
    thetas = {
        "sliding_attention": reader.number("rope_local_base_freq", 10000.0),
        "full_attention": reader.number("rope_theta", 1000000.0),
    }
    for key, value in by_type.items():
        if key not in thetas:
            raise reader.refuse(f"rope_parameters.{key}", value, f"it is read by layer type: {', '.join(thetas)}")
    specs = []
    for kind, theta in thetas.items():
        parameters = dict(by_type_reader.mapping(kind) or {})
        if kind == "full_attention":
            parameters.update(scaling)
        name = f"rope_parameters.{kind}"
        specs.append(rope_spec(parameters, FAMILY, name, sizes.heads.head_dim, theta, sizes.max_positions))
    return specs[0], specs[1]
