"""DeepSeek-V2, V3, GLM-4.7-Flash, Mistral 4: latent attention, experts in most layers, some that every row has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.kernels.signature import Routing
from penstock.layers.experts import MixtureOfExperts
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.mlp import GatedMlp
from penstock.models.common import (
    BlockStyle,
    Mlp,
    Sight,
    Sizes,
    gated_mlp,
    llama_model,
    read_grouped_routing,
    read_routing,
    read_sizes,
)
from penstock.models.config import ConfigReader, mscale, read_activation, read_rope, split_query_scale
from penstock.models.declaration import ModelDeclaration

V2, V3, LITE = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"
MISTRAL4 = "Mistral4ForCausalLM"
# Of norms within attention, whatever a file says of the others.
_INNER_EPS = 1e-6
_MISTRAL4_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_CORRECTION = "gate.e_score_correction_bias"


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What holds where a file does not say it: columns of parts of attention, and of experts; layers without these."""

    query_rank: int
    still: int
    value: int
    expert: int
    shared: int
    dense: int
    max_positions: int
    eps: float
    latent: int = 512


def declare_v2(config: Mapping[str, Any]) -> ModelDeclaration:
    """Experts are chosen by a softmax over all, of the groups whose best one is best; weights stay what they are."""
    reader = _reader(config, "deepseek_v2")
    grouped = reader.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy") != "greedy"
    reader.choice("scoring_func", ("softmax",), "softmax")
    routing = read_routing(reader, "num_experts", "n_routed_experts", defaults=(64, 6), renormalise=False)
    groups, kept = reader.integer("n_group", 1), reader.integer("topk_group", 1)
    if routing.experts % groups or kept > groups or routing.chosen > routing.experts // groups * kept:
        raise ModelFileError(
            f"config.json has n_group = {groups} and topk_group = {kept}, from which {routing.chosen} of "
            f"{routing.experts} experts cannot be chosen."
        )
    if not grouped:
        groups = kept = 1
    scale = reader.number("routed_scaling_factor", 1.0)
    routing = replace(routing, scale=scale, groups=groups, kept_groups=kept, best_of_group=1)
    # transformers never renormalises here, whatever a file says.
    reader.ignore("norm_topk_prob")
    defaults = _Defaults(1536, still=128, value=128, expert=1407, shared=2, dense=0, max_positions=2048, eps=1e-6)
    return _declare(reader, config, V2, routing, None, defaults)


def declare_v3(config: Mapping[str, Any]) -> ModelDeclaration:
    """Experts are chosen by sigmoids, corrected and in groups."""
    reader = _reader(config, "deepseek_v3")
    routing = _by_sigmoid(reader, (256, 8), (8, 4), 2.5)
    defaults = _Defaults(1536, still=128, value=128, expert=2048, shared=1, dense=3, max_positions=4096, eps=1e-6)
    return _declare(reader, config, V3, routing, _CORRECTION, defaults)


def declare_lite(config: Mapping[str, Any]) -> ModelDeclaration:
    """GLM-4.7-Flash: DeepSeek-V3 with another list of layers that have experts."""
    reader = _reader(config, "glm4_moe_lite")
    routing = _by_sigmoid(reader, (64, 4), (1, 1), 1.8)
    defaults = _Defaults(768, still=192, value=256, expert=1536, shared=1, dense=1, max_positions=202752, eps=1e-5)
    return _declare(reader, config, LITE, routing, _CORRECTION, defaults)


def declare_mistral4(config: Mapping[str, Any], path: str = "") -> ModelDeclaration:
    """Experts are chosen by a softmax; queries are worth more far behind the original context.

    `path` is where in config.json the configuration is.
    """
    settings, query_scale = split_query_scale(config, "mistral4", _MISTRAL4_YARN, path)
    # Said of a whole head here; what turns is a vector of its own.
    settings.pop("partial_rotary_factor", None)
    others = {key: value for key, value in config.items() if key not in ("rope_scaling", "head_dim")}
    newer = {**others, "rope_parameters": settings}
    reader = _reader(newer, "mistral4", path)
    routing = read_grouped_routing(reader, defaults=(128, 4))
    defaults = _Defaults(1024, still=64, value=128, expert=2048, shared=1, dense=0, max_positions=1048576, eps=1e-6)
    routing = replace(routing, score="softmax")
    declared = _declare(reader, newer, MISTRAL4, routing, None, replace(defaults, latent=256))
    blocks = tuple(
        replace(block, attention=replace(block.attention, query_scale=query_scale)) for block in declared.decoder.blocks
    )
    return replace(declared, decoder=replace(declared.decoder, blocks=blocks))


def _reader(config: Mapping[str, Any], family: str, path: str = "") -> ConfigReader:
    """All heads have one key; files say that each has its own, as it would if keys were made."""
    return ConfigReader({key: value for key, value in config.items() if key != "num_key_value_heads"}, family, path)


def _by_sigmoid(reader: ConfigReader, defaults: tuple[int, int], groups: tuple[int, int], scale: float) -> Routing:
    reader.choice("topk_method", ("noaux_tc",), "noaux_tc")
    reader.choice("scoring_func", ("sigmoid",), "sigmoid")
    return read_grouped_routing(reader, defaults=defaults, default_groups=groups, scale=scale)


def _declare(
    reader: ConfigReader,
    config: Mapping[str, Any],
    architecture: str,
    routing: Routing,
    correction: str | None,
    defaults: _Defaults,
) -> ModelDeclaration:
    """A model with such a router. The layer behind the last one, which predicts a token more, is not used."""
    turning = reader.integer("qk_rope_head_dim", 64)
    sizes = read_sizes(reader, kv_heads=None, head_dim=turning, max_positions=defaults.max_positions, eps=defaults.eps)
    style = BlockStyle(read_activation(reader, "hidden_act", "silu"), mlp_bias=reader.flag("mlp_bias", False))
    inner = reader.integer("moe_intermediate_size", defaults.expert)
    shared = inner * reader.count("n_shared_experts", defaults.shared)
    sparse = _sparse_layers(reader, sizes.layers, defaults.dense)
    attention = _attention(reader, config, sizes, turning, defaults)
    # Of training, and of the layer that is not used.
    reader.ignore("num_nextn_predict_layers", "num_mtp_layers")
    reader.ignore("aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq")

    def mlp_of(name: str, index: int) -> Mlp:
        if not sparse[index]:
            return gated_mlp(name, sizes, style)
        always = GatedMlp(
            f"{name}.mlp.shared_experts", sizes.width, shared, style.activation, style.mlp_bias, style.mlp_bias
        )
        return MixtureOfExperts(
            f"{name}.mlp",
            sizes.width,
            inner,
            routing,
            style.activation,
            correction=correction,
            shared=always if shared else None,
        )

    sights = [Sight(attention.rope)] * sizes.layers
    declared = llama_model(reader, architecture, sizes, style, sights, mlp_of=mlp_of)
    blocks = tuple(
        replace(block, attention=replace(attention, name=block.attention.name, layer=index))
        for index, block in enumerate(declared.decoder.blocks)
    )
    decoder = replace(declared.decoder, blocks=blocks)
    return replace(declared, decoder=decoder, unused_tensors=(f"model.layers.{sizes.layers}.*",))


def _sparse_layers(reader: ConfigReader, layers: int, dense: int) -> tuple[bool, ...]:
    """Of each layer, whether it has experts."""
    first = reader.count("first_k_dense_replace", dense)
    kinds = reader.strings("mlp_layer_types")
    if kinds is None:
        return tuple(index >= first for index in range(layers))
    if len(kinds) != layers or not set(kinds) <= {"dense", "sparse"}:
        raise reader.refuse("mlp_layer_types", kinds, f"{layers} of: dense, sparse")
    return tuple(kind == "sparse" for kind in kinds)


def _attention(
    reader: ConfigReader, config: Mapping[str, Any], sizes: Sizes, turning: int, defaults: _Defaults
) -> LatentAttention:
    """That of every layer, but for its name and number.

    Heads' ways to keys and to values are one tensor, unless `kv_b_apart` says otherwise, as it does of GGUF files.
    """
    still = reader.integer("qk_nope_head_dim", defaults.still)
    rank = reader.optional_integer("q_lora_rank", defaults.query_rank)
    bias = reader.flag("attention_bias", False)
    if bias and rank is None:
        raise reader.refuse("attention_bias", bias, "implemented: false, where q_lora_rank is null")
    reader.ignore("qk_head_dim")
    rope = read_rope(reader, turning, sizes.max_positions)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    # Of scores over a longer context (YaRN, section 3.4); the settings have been read.
    all_parts = scaling.get("mscale_all_dim") or 0
    wider = mscale(scaling["factor"], all_parts) if all_parts and rope.scaling is not None else 1.0
    return LatentAttention(
        name="",
        layer=0,
        width=sizes.width,
        query_heads=sizes.heads.query_heads,
        rope=rope,
        still=still,
        latent=reader.integer("kv_lora_rank", defaults.latent),
        value=reader.integer("v_head_dim", defaults.value),
        query_rank=rank,
        scale=(still + turning) ** -0.5 * wider * wider,
        eps=_INNER_EPS,
        bias=bias,
        paired=reader.flag("rope_interleave", True),
        apart=reader.flag("kv_b_apart", False),
    )
