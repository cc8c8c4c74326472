"""What tokens give each layer beside the residual stream: a vector of each, from a table and from their embedding.

Source: Gemma 3n, 2025, per-layer embeddings; Gemma 4, 2026, has them in its small models.
"""

from dataclasses import dataclass

from penstock.kernels.signature import ActivationName, HeadLayout
from penstock.kernels.tape import Tape, Value
from penstock.layers.linear import Linear
from penstock.layers.norm import RmsNorm
from penstock.layers.weights import WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """The vectors of all layers, side by side.

    Attributes:
        table, projection, norm: names of the table of tokens, of the way from embeddings, and of that way's norm.
        vocab_size: rows of the table.
        width: columns of the residual stream.
        layers, size: how many vectors a token has, and columns of each.
    """

    table: str
    projection: str
    norm: str
    vocab_size: int
    width: int
    layers: int
    size: int
    eps: float

    @property
    def table_weight(self) -> WeightSpec:
        """The matrix [vocab_size, layers · size] whose rows are what tokens give by themselves."""
        part = WeightPart(f"{self.table}.weight", (self.vocab_size, self.layers * self.size))
        return WeightSpec(part.tensor, (part,), "table")

    @property
    def linear(self) -> Linear:
        """From the residual stream's width to all vectors."""
        return Linear(self.projection, self.width, ((self.projection, self.layers * self.size),))

    @property
    def own_norm(self) -> RmsNorm:
        """The norm of each projected vector."""
        return RmsNorm(self.norm, self.size, self.eps)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that are read for them."""
        return (self.table_weight, *self.linear.weights, self.own_norm.weight)

    def record(self, tape: Tape, embedded: Value) -> Value:
        """Embeddings [tokens, width], and the tokens → [tokens, layers · size]."""
        of_tokens = tape.embedding(self.table_weight.ref, self.layers * self.size)
        of_tokens = tape.scale(of_tokens, self.size**0.5, rounded=True)
        projected = tape.scale(self.linear.record(tape, embedded), self.width**-0.5)
        # A vector is normed as a head is.
        norm, vectors = self.own_norm.weight.ref, HeadLayout(self.layers, 0, self.size)
        normed = tape.head_norm(projected, vectors, norm, norm, self.eps)
        return tape.scale(tape.add(normed, of_tokens), 2**-0.5)


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What one layer makes of its vectors: gated by the residual stream, they are added to it.

    Attributes:
        name: prefix of its tensors in the checkpoint.
        layer: index of its vectors.
        width, size: columns of the residual stream, and of a vector.
    """

    name: str
    layer: int
    width: int
    size: int
    activation: ActivationName
    eps: float

    @property
    def gate(self) -> Linear:
        """From the residual stream to gates of a vector."""
        name = f"{self.name}.per_layer_input_gate"
        return Linear(name, self.width, ((name, self.size),))

    @property
    def projection(self) -> Linear:
        """Back to the width of the residual stream."""
        name = f"{self.name}.per_layer_projection"
        return Linear(name, self.size, ((name, self.width),))

    @property
    def norm(self) -> RmsNorm:
        """The norm of what is added to the residual stream."""
        return RmsNorm(f"{self.name}.post_per_layer_input_norm", self.width, self.eps)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the layer reads for it."""
        return (*self.gate.weights, *self.projection.weights, self.norm.weight)

    def own(self, tape: Tape, inputs: Value) -> Value:
        """The vectors of all layers [tokens, layers · size] → this one's, [tokens, size]."""
        return tape.columns(inputs, self.layer * self.size, self.size)

    def record(self, tape: Tape, residual: Value, own: Value) -> Value:
        """The residual stream [rows, width] and vectors [rows, size] → what is added, [rows, width]."""
        gated = tape.gated_activation(tape.concatenate(self.gate.record(tape, residual), own), self.activation)
        return self.norm.record(tape, self.projection.record(tape, gated))
