"""Normalisation of rows."""

from dataclasses import dataclass

from penstock.kernels.tape import Tape, Value
from penstock.layers.weights import HeadRows, WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """RMS norm over `width` columns; `unit_offset` where the stored weight is the distance from one.

    `rows` says where its numbers stand in the file, where they belong to heads; `tensor` is what they are called there.
    """

    name: str
    width: int
    eps: float
    unit_offset: bool = False
    rows: HeadRows | None = None
    tensor: str = "weight"

    @property
    def weight(self) -> WeightSpec:
        """The vector [width] that the rows are multiplied by."""
        part = WeightPart(f"{self.name}.{self.tensor}", (self.width,), self.rows)
        return WeightSpec(part.tensor, (part,), "norm", neutral=0.0 if self.unit_offset else 1.0)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the norm reads."""
        return (self.weight,)

    def record(self, tape: Tape, x: Value) -> Value:
        """Record the norm of x [rows, width]."""
        return tape.rms_norm(x, self.weight.ref, self.eps, unit_offset=self.unit_offset)

    def record_add(self, tape: Tape, x: Value, residual: Value) -> tuple[Value, Value]:
        """Add x to the residual stream, then normalise: (normalised, new residual)."""
        return tape.add_rms_norm(x, residual, self.weight.ref, self.eps, unit_offset=self.unit_offset)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer norm over `width` columns, with a bias where it is `biased`."""

    name: str
    width: int
    eps: float
    biased: bool = True

    @property
    def weight(self) -> WeightSpec:
        """The vector [width] that the rows are multiplied by."""
        part = WeightPart(f"{self.name}.weight", (self.width,))
        return WeightSpec(part.tensor, (part,), "norm", neutral=1.0)

    @property
    def bias(self) -> WeightSpec | None:
        """The vector [width] that is added, or None."""
        if not self.biased:
            return None
        part = WeightPart(f"{self.name}.bias", (self.width,))
        return WeightSpec(part.tensor, (part,), "bias", neutral=0.0)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the norm reads."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def record(self, tape: Tape, x: Value) -> Value:
        """Record the norm of x [rows, width]."""
        return tape.layer_norm(x, self.weight.ref, self.eps, None if self.bias is None else self.bias.ref)

    def record_add(self, tape: Tape, x: Value, residual: Value) -> tuple[Value, Value]:
        """Add x to the residual stream, then normalise: (normalised, new residual)."""
        total = tape.add(residual, x)
        return self.record(tape, total), total


Norm = RmsNorm | LayerNorm
