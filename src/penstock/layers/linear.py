"""Linear projections; several may be fused into one matrix product."""

from dataclasses import dataclass

from penstock.kernels.tape import Tape, Value
from penstock.layers.weights import WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection from `inputs` columns; `parts` are (checkpoint name without suffix, columns) side by side.

    `name` is what the fused weight is called; `bias` says whether every part has one; `head` marks the projection to
    logits.
    """

    name: str
    inputs: int
    parts: tuple[tuple[str, int], ...]
    bias: bool = False
    head: bool = False

    @property
    def outputs(self) -> int:
        """Number of columns of the result."""
        return sum(columns for _, columns in self.parts)

    @property
    def weight(self) -> WeightSpec:
        """The matrix [outputs, inputs], of all parts."""
        parts = tuple(WeightPart(f"{name}.weight", (columns, self.inputs)) for name, columns in self.parts)
        return WeightSpec(f"{self.name}.weight", parts, "head" if self.head else "linear")

    @property
    def bias_weight(self) -> WeightSpec | None:
        """The vector [outputs], or None."""
        if not self.bias:
            return None
        parts = tuple(WeightPart(f"{name}.bias", (columns,)) for name, columns in self.parts)
        return WeightSpec(f"{self.name}.bias", parts, "bias", neutral=0.0)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the projection reads."""
        bias = self.bias_weight
        return (self.weight,) if bias is None else (self.weight, bias)

    def record(self, tape: Tape, x: Value) -> Value:
        """x [rows, inputs] → [rows, outputs]."""
        bias = self.bias_weight
        return tape.linear(x, self.weight.ref, self.outputs, None if bias is None else bias.ref)
