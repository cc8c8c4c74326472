"""Feed-forward layers."""

from dataclasses import dataclass, replace

from penstock.core.shares import Share, TensorRank, shares
from penstock.kernels.signature import GateName, PlainActivationName
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.weights import HeadCut, WeightSpec


@dataclass(frozen=True, slots=True)
class GatedNames:
    """What projections are called in a checkpoint, behind the layer's name; `fused` is gate and up as one."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    fused: str = "gate_up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(activation(gate(x)) · up(x)); gate and up are one matrix product (Shazeer, GLU variants, 2020).

    Attributes:
        gate_up_bias, down_bias: whether the projections have biases.
        fused: whether the files have gate and up as one, and `ups_first` the up before the gate in it.
        share: the columns of the hidden layer that this rank has; None: all.
    """

    name: str
    width: int
    inner_width: int
    activation: GateName
    gate_up_bias: bool = False
    down_bias: bool = False
    fused: bool = False
    ups_first: bool = False
    names: GatedNames = GatedNames()
    share: Share | None = None

    def of_rank(self, rank: TensorRank) -> "GatedMlp":
        """What one of several ranks has of it."""
        return replace(self, share=shares(self.inner_width, rank.size, rank.unit)[rank.rank])

    @property
    def gate_up(self) -> Linear:
        """The projections of gate and up, as one."""
        whole, share, inner = self._gate_up, self.share, self.inner_width
        if share is None:
            return whole
        if len(whole.parts) == 1:
            return whole.taking((0, share.behind(0, 2 * inner)), (0, share.behind(inner, 2 * inner)))
        return whole.taking((0, share), (1, share))

    @property
    def _gate_up(self) -> Linear:
        inner, name, fused = self.inner_width, f"{self.name}.gate_up_proj", f"{self.name}.{self.names.fused}"
        if self.ups_first:
            cuts = HeadCut(1, 2 * inner, inner, inner), HeadCut(1, 2 * inner, 0, inner)
            return Linear(name, self.width, ((fused, inner), (fused, inner)), self.gate_up_bias, cuts=cuts)
        parts = ((f"{self.name}.{self.names.gate}", inner), (f"{self.name}.{self.names.up}", inner))
        return Linear(name, self.width, ((fused, 2 * inner),) if self.fused else parts, self.gate_up_bias)

    @property
    def down(self) -> Linear:
        """Back to the width of the model."""
        name = f"{self.name}.{self.names.down}"
        whole = Linear(name, self.inner_width, ((name, self.width),), self.down_bias)
        return whole if self.share is None else whole.given(self.share)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        return (*self.gate_up.weights, *self.down.weights)

    def record(self, tape: Tape, x: Value) -> Value:
        """x [rows, width] → [rows, width]; of several ranks, what this one adds to their sum."""
        return self.down.record(tape, tape.gated_activation(self.gate_up.record(tape, x), self.activation))


@dataclass(frozen=True, slots=True)
class PlainMlp:
    """down(activation(up(x))), without a gate.

    Attributes:
        up_name, down_name: of the projections in a checkpoint, behind `name`.
        biased: whether both have biases.
        across: whether the files have matrices as [inputs, outputs].
        share: the columns of the hidden layer that this rank has; None: all.
    """

    name: str
    width: int
    inner_width: int
    activation: PlainActivationName
    up_name: str
    down_name: str
    biased: bool = True
    across: bool = False
    share: Share | None = None

    def of_rank(self, rank: TensorRank) -> "PlainMlp":
        """What one of several ranks has of it."""
        return replace(self, share=shares(self.inner_width, rank.size, rank.unit)[rank.rank])

    @property
    def up(self) -> Linear:
        """The projection to the hidden layer."""
        whole = self._linear(self.up_name, self.width, self.inner_width)
        return whole if self.share is None else whole.taking((0, self.share))

    @property
    def down(self) -> Linear:
        """Back to the width of the model."""
        whole = self._linear(self.down_name, self.inner_width, self.width)
        return whole if self.share is None else whole.given(self.share)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        return (*self.up.weights, *self.down.weights)

    def record(self, tape: Tape, x: Value) -> Value:
        """x [rows, width] → [rows, width]; of several ranks, what this one adds to their sum."""
        return self.down.record(tape, tape.activation(self.up.record(tape, x), self.activation))

    def _linear(self, part: str, inputs: int, outputs: int) -> Linear:
        name = f"{self.name}.{part}"
        return Linear(name, inputs, ((name, outputs),), self.biased, across=self.across)
