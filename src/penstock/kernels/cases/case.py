"""One operation on one batch, as data: the tests compare implementations on it, the kernel benchmark times it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.core.kv import LayerKV
from penstock.kernels.signature import (
    AddRmsNorm,
    Attention,
    Columns,
    Concatenate,
    Embedding,
    GatedActivation,
    GateName,
    HeadLinear,
    Linear,
    Operation,
    Positions,
    Route,
    RowAttention,
    Sinusoids,
    SourceAttention,
    Types,
    WriteKV,
)

Use = Literal["tests", "bench", "both"]


@dataclass(frozen=True)
class Case:
    """One operation on one batch; `rows` are (tokens added, context in all) of each, single tokens first.

    `widths` are the columns of its inputs, `weights` the shapes of its weights. `kv` says what a layer stores, for
    operations on the cache. `wanted` are the tokens that SelectRows keeps. `shared` are pairs of a token and
    another row whose context it belongs to, `types` those of all tokens, or none, and `seen` how many of each
    row's first tokens are, or none. `gate` is the activation
    behind a projection to [gates | ups], which the native kernels carry out together with it. `sources` are how many
    tokens each row's source has, in operations that see these instead of contexts. `use` says who runs the case: shapes
    of real models are "bench" where the reference would take long for them, else "both".
    """

    name: str
    operation: Operation
    widths: tuple[int, ...]
    rows: tuple[tuple[int, int], ...] = ((1, 7), (1, 1), (1, 40), (5, 5), (3, 20))
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kv: LayerKV = LayerKV(2, 8)
    wanted: tuple[int, ...] = (0, 2, 7)
    shared: tuple[tuple[int, int], ...] = ()
    types: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    gate: GateName | None = None
    sources: tuple[int, ...] = ()
    use: Use = "tests"

    @property
    def op(self) -> str:
        """The operation's name; "gated_linear" for a projection with its gate."""
        return self.operation.op if self.gate is None else f"gated_{self.operation.op}"

    @property
    def stored(self) -> tuple[int, ...]:
        """Of each row, how many tokens have something in the layer's slots."""
        return self.sources or tuple(context for _, context in self.rows)

    @property
    def tokens(self) -> int:
        """Number of rows of the inputs."""
        return sum(added for added, _ in self.rows)

    @property
    def output_widths(self) -> tuple[int, ...]:
        """Number of columns of each output."""
        match self.operation:
            case Embedding(weight) | Positions(weight) | Types(weight):
                return (self.weights[weight.name][1],)
            case Sinusoids(sines):
                return (sines.width,)
            case Linear(weight):
                outputs = self.weights[weight.name][0]
                return (outputs if self.gate is None else outputs // 2,)
            case AddRmsNorm():
                return self.widths
            case WriteKV():
                return ()
            case Attention(heads) | SourceAttention(heads) | RowAttention(heads):
                return (heads.query_width,)
            case Concatenate():
                return (sum(self.widths),)
            case GatedActivation():
                return (self.widths[0] // 2,)
            case HeadLinear(weight):
                return (self.weights[weight.name][0],)
            case Columns(heads, _, count):
                return (heads * count,)
            case Route(_, routing):
                return (2 * routing.chosen,)
            case _:
                return (self.widths[0],)
