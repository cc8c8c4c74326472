"""Feed-forward layers."""

from dataclasses import dataclass

from penstock.kernels.signature import ActivationName, GateName
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.weights import WeightSpec


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(activation(gate(x)) · up(x)); gate and up are one matrix product (Shazeer, GLU variants, 2020).

    Attributes:
        gate_up_bias, down_bias: whether the projections have biases.
        fused: whether the files have gate and up as one.
    """

    name: str
    width: int
    inner_width: int
    activation: GateName
    gate_up_bias: bool = False
    down_bias: bool = False
    fused: bool = False

    @property
    def gate_up(self) -> Linear:
        """The projections of gate and up, as one."""
        whole = f"{self.name}.gate_up_proj"
        parts = ((f"{self.name}.gate_proj", self.inner_width), (f"{self.name}.up_proj", self.inner_width))
        return Linear(whole, self.width, ((whole, 2 * self.inner_width),) if self.fused else parts, self.gate_up_bias)

    @property
    def down(self) -> Linear:
        """Back to the width of the model."""
        name = f"{self.name}.down_proj"
        return Linear(name, self.inner_width, ((name, self.width),), self.down_bias)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        return (*self.gate_up.weights, *self.down.weights)

    def record(self, tape: Tape, x: Value) -> Value:
        """x [rows, width] → [rows, width]."""
        return self.down.record(tape, tape.gated_activation(self.gate_up.record(tape, x), self.activation))


@dataclass(frozen=True, slots=True)
class PlainMlp:
    """down(activation(up(x))), without a gate.

    Attributes:
        up_name, down_name: of the projections in a checkpoint, behind `name`.
        biased: whether both have biases.
        across: whether the files have matrices as [inputs, outputs].
    """

    name: str
    width: int
    inner_width: int
    activation: ActivationName
    up_name: str
    down_name: str
    biased: bool = True
    across: bool = False

    @property
    def up(self) -> Linear:
        """The projection to the hidden layer."""
        return self._linear(self.up_name, self.width, self.inner_width)

    @property
    def down(self) -> Linear:
        """Back to the width of the model."""
        return self._linear(self.down_name, self.inner_width, self.width)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        return (*self.up.weights, *self.down.weights)

    def record(self, tape: Tape, x: Value) -> Value:
        """x [rows, width] → [rows, width]."""
        return self.down.record(tape, tape.activation(self.up.record(tape, x), self.activation))

    def _linear(self, part: str, inputs: int, outputs: int) -> Linear:
        name = f"{self.name}.{part}"
        return Linear(name, inputs, ((name, outputs),), self.biased, across=self.across)
