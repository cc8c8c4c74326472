"""What families of the Llama lineage have in common: sizes read from config.json, and the blocks that they build."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from penstock.core.errors import ModelFileError
from penstock.kernels.places import RopeSpec
from penstock.kernels.signature import ActivationName, HeadLayout, Routing
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.experts import MixtureOfExperts
from penstock.layers.mlp import GatedMlp, PlainMlp
from penstock.layers.norm import Norm, RmsNorm
from penstock.models.config import ConfigReader, read_dtype
from penstock.models.declaration import ModelDeclaration

# Far above any model; a file that asks for more would keep the declaration building layers for hours.
_MOST_LAYERS = 4096
_MOST_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions that every family has; widths are in columns."""

    vocab_size: int
    width: int
    inner_width: int
    layers: int
    heads: HeadLayout
    max_positions: int
    eps: float


def read_sizes(
    reader: ConfigReader,
    *,
    kv_heads: int | None,
    head_dim: int | None,
    max_positions: int,
    eps: float = 1e-6,
    eps_key: str = "rms_norm_eps",
) -> Sizes:
    """Read dimensions; the arguments are the family's defaults (None: one KV head per head, width / heads)."""
    width = reader.integer("hidden_size")
    query_heads = reader.integer("num_attention_heads")
    kv_count = reader.integer("num_key_value_heads", kv_heads or query_heads)
    if query_heads % kv_count:
        raise ModelFileError(
            f"config.json has num_attention_heads = {query_heads}, which is not a multiple of "
            f"num_key_value_heads = {kv_count}."
        )
    size = reader.integer("head_dim", head_dim or max(1, width // query_heads))
    if size % 2:
        raise ModelFileError(f"config.json has head_dim = {size}, but rotary embeddings need an even number.")
    return Sizes(
        vocab_size=reader.integer("vocab_size"),
        width=width,
        inner_width=reader.integer("intermediate_size"),
        layers=reader.integer("num_hidden_layers", largest=_MOST_LAYERS),
        heads=HeadLayout(query_heads, kv_count, size),
        max_positions=reader.integer("max_position_embeddings", max_positions),
        eps=reader.number(eps_key, eps),
    )


class Sight(NamedTuple):
    """What positions are to a layer.

    Attributes:
        rope: how its heads turn; None: they do not.
        window: how many positions back it sees, itself included; None: all.
    """

    rope: RopeSpec | None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class BlockStyle:
    """Where families of the Llama lineage differ within a block.

    Attributes:
        norms: of the residual stream "before" attention and MLP, or of what both make, "behind" them.
        score_scale: what scores are multiplied by; None: one over the root of a head's columns.
        residual_scale: what results of both are multiplied by; 1: nothing.
        fused: whether files have query, key and value as one tensor, and gate and up.
        paired: whether columns that turn together are neighbours in the files.
        sunk: whether query heads have sinks.
        query_scale: (beta, context) of queries that are worth more at later positions; None: they are not.
        parallel: whether attention and MLP read the same, by one norm.
    """

    activation: ActivationName
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norm: bool = False
    whole_norm: bool = False
    norms: Literal["before", "behind"] = "before"
    score_scale: float | None = None
    residual_scale: float = 1.0
    fused: bool = False
    paired: bool = False
    sunk: bool = False
    query_scale: tuple[float, int] | None = None
    parallel: bool = False


def read_heads(
    reader: ConfigReader,
    width_key: str = "hidden_size",
    heads_key: str = "num_attention_heads",
    defaults: tuple[int | None, int | None] = (None, None),
) -> tuple[int, HeadLayout]:
    """The width of a model whose heads are equal parts of it, and these. Raises ModelFileError where they are not."""
    width, heads = reader.integer(width_key, defaults[0]), reader.integer(heads_key, defaults[1])
    if width % (2 * heads):
        raise ModelFileError(
            f"config.json has {width_key} = {width}, which is not an even multiple of {heads_key} = {heads}."
        )
    return width, HeadLayout(heads, heads, width // heads)


def check_positions(positions: int, skipped: int) -> None:
    """Raise ModelFileError where a table of positions has none behind those of padding."""
    if positions <= skipped:
        raise ModelFileError(
            f"config.json has max_position_embeddings = {positions}, of which {skipped} are of padding: none is left."
        )


Mlp = GatedMlp | PlainMlp | MixtureOfExperts
MlpOf = Callable[[str, int], Mlp]
"""(name of a block, index of its layer) → what follows attention there."""
NormOf = Callable[[str], Norm]
"""Name of a norm of the residual stream → it."""


def llama_model(
    reader: ConfigReader,
    architecture: str,
    sizes: Sizes,
    style: BlockStyle,
    sights: Sequence[Sight],
    *,
    mlp_of: MlpOf | None = None,
    norm_of: NormOf | None = None,
    tied: bool = False,
) -> ModelDeclaration:
    """A model of blocks, with what each layer sees, once its family has read what it knows of the configuration.

    `tied` is whether embedding and head are one where a file does not say it. Raises UnsupportedModel for what is left
    unread.
    """
    tied = reader.flag("tie_word_embeddings", tied)
    dtype = read_dtype(reader)
    reader.ignore("architectures", "model_type")
    reader.refuse_unread()
    norms = norm_of or (lambda name: RmsNorm(name, sizes.width, sizes.eps))
    blocks = tuple(
        llama_block(f"model.layers.{index}", index, sizes, style, sight, mlp_of, norms)
        for index, sight in enumerate(sights)
    )
    head = None if tied else "lm_head"
    decoder = Decoder(sizes.vocab_size, sizes.width, blocks, norms("model.norm"), head=head)
    return ModelDeclaration(architecture, reader.family, sizes.vocab_size, sizes.max_positions, dtype, decoder)


def gated_mlp(name: str, sizes: Sizes, style: BlockStyle) -> GatedMlp:
    """The feed-forward layer of a block that has no experts."""
    bias = style.mlp_bias
    return GatedMlp(f"{name}.mlp", sizes.width, sizes.inner_width, style.activation, bias, bias, style.fused)


def llama_block(
    name: str,
    index: int,
    sizes: Sizes,
    style: BlockStyle,
    sight: Sight,
    mlp_of: MlpOf | None = None,
    norm_of: NormOf | None = None,
) -> DecoderBlock:
    """A block whose tensors' names begin with `name`; `index` is that of its KV planes."""
    attention = SelfAttention(
        name=f"{name}.self_attn",
        layer=index,
        width=sizes.width,
        heads=sizes.heads,
        rope=sight.rope,
        scale=sizes.heads.head_dim**-0.5 if style.score_scale is None else style.score_scale,
        window=sight.window,
        qkv_bias=style.qkv_bias,
        output_bias=style.output_bias,
        head_norm=(sizes.eps, False) if style.head_norm else None,
        whole_norm=style.whole_norm,
        paired=style.paired,
        fused=style.fused,
        sunk=style.sunk,
        query_scale=style.query_scale,
    )

    def norm(last: str) -> Norm:
        named = f"{name}.{last}"
        return RmsNorm(named, sizes.width, sizes.eps) if norm_of is None else norm_of(named)

    before = style.norms == "before"
    return DecoderBlock(
        before_attention=norm("input_layernorm") if before else None,
        attention=attention,
        before_mlp=norm("post_attention_layernorm") if before and not style.parallel else None,
        mlp=gated_mlp(name, sizes, style) if mlp_of is None else mlp_of(name, index),
        after_attention=None if before else norm("post_attention_layernorm"),
        after_mlp=None if before else norm("post_feedforward_layernorm"),
        residual_scale=None if style.residual_scale == 1.0 else style.residual_scale,
        parallel=style.parallel,
    )


def read_grouped_routing(
    reader: ConfigReader, *, defaults: tuple[int, int], default_groups: tuple[int, int] = (1, 1), scale: float = 1.0
) -> Routing:
    """As DeepSeek-V3 has it: sigmoids, groups of experts, weights whose sum a small number keeps from 0.

    `default_groups` and `scale` are the family's, where a file does not say them.
    """
    routing = read_routing(
        reader,
        "num_local_experts",
        "n_routed_experts",
        defaults=defaults,
        renormalise=reader.flag("norm_topk_prob", True),
    )
    groups, kept = reader.integer("n_group", default_groups[0]), reader.integer("topk_group", default_groups[1])
    if routing.experts % groups or kept > groups:
        raise ModelFileError(
            f"config.json has n_group = {groups} and topk_group = {kept}, which {routing.experts} experts do not have."
        )
    if groups > 1 and routing.experts // groups < routing.best_of_group:
        raise ModelFileError(
            f"config.json has n_group = {groups} for {routing.experts} experts, but the score of a group is that of "
            f"its {routing.best_of_group} best ones."
        )
    if routing.chosen > routing.experts // groups * kept:
        raise ModelFileError(
            f"config.json has num_experts_per_tok = {routing.chosen}, but {kept} groups (topk_group) of "
            f"{routing.experts // groups} experts."
        )
    scale = reader.number("routed_scaling_factor", scale)
    return replace(routing, score="sigmoid", epsilon=1e-20, scale=scale, groups=groups, kept_groups=kept)


def read_routing(
    reader: ConfigReader,
    *experts: str,
    defaults: tuple[int | None, int | None],
    renormalise: bool,
    chosen: str = "num_experts_per_tok",
) -> Routing:
    """How many there are, under the last key of `experts` that is there, and under `chosen` how many a row has."""
    count = defaults[0]
    for key in experts:
        count = reader.integer(key, count, largest=_MOST_EXPERTS)
    of_row = reader.integer(chosen, defaults[1])
    if count is None or of_row > count:
        raise ModelFileError(f"config.json has {chosen} = {of_row}, but only {count} experts ({experts[-1]}).")
    return Routing(count, of_row, renormalise=renormalise)
