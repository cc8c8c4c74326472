"""The operation table: what a model may ask for, as frozen data with named attributes.

Every value is a matrix [rows, width]; rows are the tokens of the step or, after SelectRows, those whose logits are
wanted. A selected row keeps its position, and attention sees all keys up to that. An operation names its weights;
tensors appear only when a program is compiled. Every implementation must give each row a result within rounding of the
torch reference in `kernels.reference`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.core.shares import Placement, Stripe
from penstock.kernels.collective import AllReduce, Gather, GatherRows, MergeStripes, ShareRows
from penstock.kernels.places import BucketBias, RopeSpec, Sines, WeightRef

ActivationName = Literal["silu", "gelu_tanh", "gelu"]
PlainActivationName = ActivationName | Literal["relu"]
"""What becomes of a value that is no gate."""
GateName = Literal["silu", "gelu_tanh", "gelu", "swigluoai"]
"""What becomes of a gate and an up: an activation of the gate, times the up; or gpt-oss's, which is bounded.

"swigluoai" is gate · sigmoid(1.702 · gate) · (up + 1), of a gate of at most 7 and an up from −7 to 7.
"""
ScoreName = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How a row of the fused projection is cut: query heads, then key heads, then value heads, all of `head_dim`.

    Where it is `latent`, keys are values, too, and there are no value heads.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    latent: bool = False

    @property
    def query_width(self) -> int:
        """Columns of all query heads."""
        return self.query_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def fused_width(self) -> int:
        """Columns of a whole row."""
        return self.query_width + (1 if self.latent else 2) * self.kv_width


@dataclass(frozen=True, slots=True)
class Routing:
    """How a row's experts are chosen by the logits of a router, in float32.

    Those with the largest scores are chosen; of equal ones the first. What an expert's result is multiplied by is its
    score, without the correction that chooses. A softmax over the chosen ones alone is one over all, renormalised.

    Attributes:
        experts, chosen: how many there are, and how many a row has.
        score: of a logit: "softmax" over all experts, or "sigmoid" of each.
        renormalise: whether weights are divided by their sum, to which `epsilon` is added.
        scale: what weights are multiplied by in the end.
        groups, kept_groups: equal groups of experts that follow one another; only those in the best groups can be
            chosen (DeepSeek-V3, 2024, section 2.1.2).
        best_of_group: how many of a group's largest scores add up to its own.
    """

    experts: int
    chosen: int
    score: ScoreName = "softmax"
    renormalise: bool = True
    epsilon: float = 0.0
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    best_of_group: int = 2


@dataclass(frozen=True, slots=True)
class Embedding:
    """→ [tokens, width]: the rows of `weight` that the step's token ids name.

    Where it has those of some of `ids` ids alone, from `first` on, rows of the others are zeros.
    """

    op: ClassVar[str] = "embedding"
    weight: WeightRef
    first: int = 0
    ids: int | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """→ [tokens, width]: the rows of `weight` that the tokens' positions name."""

    op: ClassVar[str] = "positions"
    weight: WeightRef


@dataclass(frozen=True, slots=True)
class Sinusoids:
    """→ [tokens, width]: sines and cosines of the tokens' positions."""

    op: ClassVar[str] = "sinusoids"
    sines: Sines


@dataclass(frozen=True, slots=True)
class Types:
    """→ [tokens, width]: the rows of `weight` that the tokens' types name, which tell a row's two texts apart."""

    op: ClassVar[str] = "types"
    weight: WeightRef


@dataclass(frozen=True, slots=True)
class Linear:
    """x → x · weightᵀ + bias; the weight is [outputs, inputs]."""

    op: ClassVar[str] = "linear"
    weight: WeightRef
    bias: WeightRef | None = None


@dataclass(frozen=True, slots=True)
class HeadLinear:
    """x → what each head's own matrix makes of its columns, side by side; the weight is [heads · outputs, inputs]."""

    op: ClassVar[str] = "head_linear"
    weight: WeightRef
    heads: int


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x → x / sqrt(mean(x²) + eps) · w, computed in float32.

    `unit_offset` multiplies by 1 + w and rounds once at the end. Otherwise the quotient may be rounded to x's type
    before it is multiplied, as the reference does, or only the product, which is more exact.
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """

    op: ClassVar[str] = "rms_norm"
    weight: WeightRef
    eps: float
    unit_offset: bool = False


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """x → (x − mean(x)) / sqrt(variance(x) + eps) · weight + bias, computed in float32.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.
    """

    op: ClassVar[str] = "layer_norm"
    weight: WeightRef
    eps: float
    bias: WeightRef | None = None


@dataclass(frozen=True, slots=True)
class AddRmsNorm:
    """x, residual → (RmsNorm(x + residual), x + residual)."""

    op: ClassVar[str] = "add_rms_norm"
    weight: WeightRef
    eps: float
    unit_offset: bool = False


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """fused QKV → fused QKV with RmsNorm over each query and key head.

    Value heads are left as they are; with `values`, they are normed by a weight of 1. Where it is `whole`, all query
    heads together are one row that is normalised, and so are all key heads; a weight then has a number for each of
    their columns.
    """

    op: ClassVar[str] = "head_norm"
    heads: HeadLayout
    query_weight: WeightRef
    key_weight: WeightRef
    eps: float
    unit_offset: bool = False
    whole: bool = False
    values: bool = False


@dataclass(frozen=True, slots=True)
class Rotary:
    """fused QKV → fused QKV with query and key heads rotated by the tokens' positions.

    Angles are position · frequency in float32; cosine and sine are rounded to the value's type before they multiply.
    Source: Su et al., RoFormer, 2021, in the arrangement of halves that Hugging Face checkpoints use.
    """

    op: ClassVar[str] = "rotary"
    heads: HeadLayout
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class QueryScale:
    """fused QKV → fused QKV with query heads multiplied by 1 + beta · ln(1 + ⌊position / context⌋).

    Source: Llama 4, 2025, whose attention so keeps its temperature over contexts that are longer than `context`.
    """

    op: ClassVar[str] = "query_scale"
    heads: HeadLayout
    beta: float
    context: int


@dataclass(frozen=True, slots=True)
class WriteKV:
    """fused QKV → nothing: stores the key and value heads of every token in the slots of layer `layer`.

    A token that is shared goes to its place in the other rows too. Without query heads, rows are keys and values alone.
    Where the cache has a `stripe` of each context, tokens of others are left out.
    """

    op: ClassVar[str] = "write_kv"
    heads: HeadLayout
    layer: int
    stripe: Stripe | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """fused QKV → [tokens, query_width]: softmax(scale · q · kᵀ) · v over the row's own context in layer `layer`.

    Keys and values are those stored, this step's included. A token at position p sees positions 0..p, with `window`
    only those above p - window. With `softcap` c, a score s becomes c · tanh(s / c) before the mask. Query head h reads
    key head h · kv_heads // query_heads. `sinks` has a score for each query head that takes part in the softmax as that
    of a position whose values are 0 (Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2023,
    section 3.1; gpt-oss, 2025). A layer that `borrows` reads what another has stored in layer `layer`, and its rows are
    query heads alone. A `bias` is added to scaled scores, in float32.

    Where the cache has a `stripe` of each context, it is attention to that alone, and its softmaxes are not ended: rows
    are [tokens, made_width] in float32, which `MergeStripes` makes one of; there, sinks take part.
    """

    op: ClassVar[str] = "attention"
    heads: HeadLayout
    layer: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: WeightRef | None = None
    borrows: bool = False
    bias: BucketBias | None = None
    stripe: Stripe | None = None

    @property
    def made_width(self) -> int:
        """Columns of a row that it makes."""
        return self.heads.query_width + (0 if self.stripe is None else 2 * self.heads.query_heads)

    @property
    def row_width(self) -> int:
        """Columns of a row that attention is given: all heads, or queries alone."""
        return self.heads.query_width if self.borrows else self.heads.fused_width


@dataclass(frozen=True, slots=True)
class SourceAttention:
    """queries [tokens, query_width] → the same: softmax(scale · q · kᵀ) · v over all tokens of the row's source.

    Keys and values are those that the encoder's program has stored in layer `layer`; `StepBatch.sources` says how many
    tokens that is. None is masked.
    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.2.3.
    """

    op: ClassVar[str] = "source_attention"
    heads: HeadLayout
    layer: int
    scale: float


@dataclass(frozen=True, slots=True)
class RowAttention:
    """fused QKV → [tokens, query_width]: softmax(scale · q · kᵀ) · v over all tokens that the row has in this step.

    Nothing is stored and nothing of earlier steps is seen. With `window`, tokens see only those that are less than so
    far away, before them and behind them. A `bias` is added to scaled scores, in float32.
    """

    op: ClassVar[str] = "row_attention"
    heads: HeadLayout
    scale: float
    window: int | None = None
    bias: BucketBias | None = None


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """[gate | up] → what `activation` makes of both, half as wide."""

    op: ClassVar[str] = "gated_activation"
    activation: GateName


@dataclass(frozen=True, slots=True)
class SigmoidGate:
    """x, gate → x · sigmoid(gate); the gate has one column, or a column for each of x."""

    op: ClassVar[str] = "sigmoid_gate"


@dataclass(frozen=True, slots=True)
class Route:
    """x → [rows, 2 · chosen]: indices of each row's experts, ascending, then what their results are multiplied by.

    Both are float32 whatever x is, and so are logits: x · weightᵀ, to which `bias` is added. Experts are chosen by
    scores to which `correction` is added; `scales` has for each expert what its weight is multiplied by in the end.
    Source: Shazeer et al., Outrageously Large Neural Networks, 2017, section 2.1.
    """

    op: ClassVar[str] = "route"
    weight: WeightRef
    routing: Routing
    bias: WeightRef | None = None
    correction: WeightRef | None = None
    scales: WeightRef | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """x, routed → the sum over a row's experts of down(activation(gate) · up), each times its weight.

    Sums are in float32, in ascending order of experts. `gate_up` is [experts · 2 · inner, width], each expert's gates
    before its ups, and `down` [experts · width, inner]. Biases are as long as these have rows.
    With a placement, weights are of the experts that this rank's group has, and others add nothing. Of several groups
    that have an expert, one computes a row; which one follows from the row's own values.
    """

    op: ClassVar[str] = "experts"
    gate_up: WeightRef
    down: WeightRef
    experts: int
    activation: GateName
    gate_up_bias: WeightRef | None = None
    down_bias: WeightRef | None = None
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Activation:
    """Applies an activation to each element."""

    op: ClassVar[str] = "activation"
    activation: PlainActivationName


@dataclass(frozen=True, slots=True)
class Add:
    """x, y → x + y."""

    op: ClassVar[str] = "add"


@dataclass(frozen=True, slots=True)
class Concatenate:
    """x, y → [x | y], or each of the heads of x beside that of y."""

    op: ClassVar[str] = "concatenate"
    heads: int = 1


@dataclass(frozen=True, slots=True)
class Columns:
    """x → the columns [first, first + count) of each of its heads, side by side."""

    op: ClassVar[str] = "columns"
    heads: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Scale:
    """x → x · factor, a constant or the one number of a weight, in float32.

    Where it is `rounded`, the factor is rounded to x's type first.
    """

    op: ClassVar[str] = "scale"
    factor: float | WeightRef
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class SoftCap:
    """x → cap · tanh(x / cap)."""

    op: ClassVar[str] = "soft_cap"
    cap: float


@dataclass(frozen=True, slots=True)
class SelectRows:
    """[tokens, width] → [logit rows, width]: the rows whose logits are wanted, in the batch's order.

    Where there is a `stripe`, x has the rows of its share alone (`Stripe.rows`), and others are zeros.
    """

    op: ClassVar[str] = "select_rows"
    stripe: Stripe | None = None


Operation = (
    Embedding
    | Positions
    | Sinusoids
    | Types
    | Linear
    | HeadLinear
    | RmsNorm
    | LayerNorm
    | AddRmsNorm
    | HeadNorm
    | Rotary
    | QueryScale
    | WriteKV
    | Attention
    | SourceAttention
    | RowAttention
    | GatedActivation
    | SigmoidGate
    | Route
    | Experts
    | Activation
    | Add
    | Concatenate
    | Columns
    | Scale
    | SoftCap
    | SelectRows
    | AllReduce
    | Gather
    | MergeStripes
    | ShareRows
    | GatherRows
)

OPERATIONS: tuple[type[Operation], ...] = (
    Embedding,
    Positions,
    Sinusoids,
    Types,
    Linear,
    HeadLinear,
    RmsNorm,
    LayerNorm,
    AddRmsNorm,
    HeadNorm,
    Rotary,
    QueryScale,
    WriteKV,
    Attention,
    SourceAttention,
    RowAttention,
    GatedActivation,
    SigmoidGate,
    Route,
    Experts,
    Activation,
    Add,
    Concatenate,
    Columns,
    Scale,
    SoftCap,
    SelectRows,
    AllReduce,
    Gather,
    MergeStripes,
    ShareRows,
    GatherRows,
)

COLLECTIVE = (AllReduce, Gather, MergeStripes, ShareRows, GatherRows)
"""Operations in which ranks meet, or merge what they have: there are kernels for them where ranks share memory."""

ENCODING = (Sinusoids, Types, RowAttention, SourceAttention)
"""Operations that models with encoders alone have: there are no kernels for them on GPUs."""

PLACED = (Rotary, QueryScale, Attention, SourceAttention)
"""Operations, on rows of either kind, that have to know where a row is in its sequence."""
