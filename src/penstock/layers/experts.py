"""The feed-forward layer as a mixture of experts."""

from dataclasses import dataclass

from penstock.kernels.signature import ActivationName, Routing
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.mlp import GatedMlp
from penstock.layers.weights import WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What tensors are called in a checkpoint, behind the layer's name.

    Attributes:
        router: the projection that chooses.
        gate, up, down: of an expert, with its index in the place of {}.
    """

    router: str = "gate"
    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A router sends each row to a few experts, gated MLPs whose results it adds up (Shazeer et al., 2017).

    Attributes:
        width, inner_width: columns of the residual stream, and of an expert's hidden layer.
        correction: name of the tensor that scores are corrected by where experts are chosen; None: there is none.
        shared: an expert that each row has beside those that it is routed to.
        shared_gate: name of a projection to one column, by whose sigmoid the shared expert's result is multiplied.
    """

    name: str
    width: int
    inner_width: int
    routing: Routing
    activation: ActivationName
    names: ExpertNames = ExpertNames()
    correction: str | None = None
    shared: GatedMlp | None = None
    shared_gate: str | None = None

    @property
    def router(self) -> WeightSpec:
        """The matrix [experts, width] that chooses."""
        part = WeightPart(f"{self.name}.{self.names.router}.weight", (self.routing.experts, self.width))
        return WeightSpec(part.tensor, (part,), "router")

    @property
    def correction_weight(self) -> WeightSpec | None:
        """The vector [experts] that is added to scores, or None."""
        if self.correction is None:
            return None
        part = WeightPart(f"{self.name}.{self.correction}", (self.routing.experts,))
        return WeightSpec(part.tensor, (part,), "router", neutral=0.0)

    @property
    def gate_up(self) -> WeightSpec:
        """Gates and ups of all experts, [experts · 2 · inner_width, width]."""
        return self._stacked("gate_up_proj", (self.names.gate, self.names.up), (self.inner_width, self.width))

    @property
    def down(self) -> WeightSpec:
        """The ways back of all experts, [experts · width, inner_width]."""
        return self._stacked("down_proj", (self.names.down,), (self.width, self.inner_width))

    @property
    def shared_gating(self) -> Linear | None:
        """The projection whose sigmoid the shared expert is multiplied by, or None."""
        if self.shared_gate is None:
            return None
        name = f"{self.name}.{self.shared_gate}"
        return Linear(name, self.width, ((name, 1),))

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads."""
        correction, shared, gating = self.correction_weight, self.shared, self.shared_gating
        return (
            self.router,
            *(() if correction is None else (correction,)),
            self.gate_up,
            self.down,
            *(() if shared is None else shared.weights),
            *(() if gating is None else gating.weights),
        )

    def record(self, tape: Tape, x: Value) -> Value:
        """x [rows, width] → [rows, width]."""
        correction = self.correction_weight
        routed = tape.route(x, self.router.ref, self.routing, correction=None if correction is None else correction.ref)
        mixed = tape.experts(x, routed, self.gate_up.ref, self.down.ref, self.routing.experts, self.activation)
        if self.shared is None:
            return mixed
        shared = self.shared.record(tape, x)
        if self.shared_gating is not None:
            shared = tape.sigmoid_gate(shared, self.shared_gating.record(tape, x))
        return tape.add(mixed, shared)

    def _stacked(self, name: str, each: tuple[str, ...], shape: tuple[int, int]) -> WeightSpec:
        parts = tuple(
            WeightPart(f"{self.name}.{part.format(expert)}.weight", shape)
            for expert in range(self.routing.experts)
            for part in each
        )
        whole, routing = f"{self.name}.experts.{name}.weight", self.routing
        return WeightSpec(whole, parts, "linear", experts=routing.experts, chosen=routing.chosen)
