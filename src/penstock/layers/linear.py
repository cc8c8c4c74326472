"""Linear projections; several may be fused into one matrix product."""

from dataclasses import dataclass

from penstock.kernels.places import WeightRef
from penstock.kernels.tape import Tape, Value
from penstock.layers.weights import HeadCut, HeadRows, WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection from `inputs` columns; `parts` are (checkpoint name without suffix, columns) side by side.

    `name` is what the fused weight is called; `bias` says whether every part has one; `head` marks the projection to
    logits; `rows` has for each part how its rows stand in the file, where that is otherwise than kernels want them, and
    `cuts` which rows of its tensor it is. Where it is `across`, matrices are [inputs, outputs] in the file.
    """

    name: str
    inputs: int
    parts: tuple[tuple[str, int], ...]
    bias: bool = False
    head: bool = False
    rows: tuple[HeadRows | None, ...] = ()
    cuts: tuple[HeadCut | None, ...] = ()
    across: bool = False

    @property
    def outputs(self) -> int:
        """Number of columns of the result."""
        return sum(columns for _, columns in self.parts)

    @property
    def weight(self) -> WeightSpec:
        """The matrix [outputs, inputs], of all parts."""
        over = HeadCut(1, self.inputs, 0, self.inputs, across=True) if self.across else None
        parts = tuple(
            WeightPart(f"{name}.weight", (columns, self.inputs), rows, cut or over)
            for name, columns, rows, cut in self._each
        )
        return WeightSpec(f"{self.name}.weight", parts, "head" if self.head else "linear")

    @property
    def bias_weight(self) -> WeightSpec | None:
        """The vector [outputs], or None."""
        if not self.bias:
            return None
        parts = tuple(WeightPart(f"{name}.bias", (columns,), rows, cut) for name, columns, rows, cut in self._each)
        return WeightSpec(f"{self.name}.bias", parts, "bias", neutral=0.0)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the projection reads."""
        bias = self.bias_weight
        return (self.weight,) if bias is None else (self.weight, bias)

    @property
    def _each(self) -> tuple[tuple[str, int, HeadRows | None, HeadCut | None], ...]:
        none = (None,) * len(self.parts)
        each = zip(self.parts, self.rows or none, self.cuts or none, strict=True)
        return tuple((*part, rows, cut) for part, rows, cut in each)

    def record(self, tape: Tape, x: Value, added: WeightRef | None = None) -> Value:
        """x [rows, inputs] → [rows, outputs]; where it has no bias, another vector can be `added`."""
        bias = self.bias_weight
        return tape.linear(x, self.weight.ref, self.outputs, added if bias is None else bias.ref)
