"""What a layer needs from a checkpoint, as data: names, shapes, and which tensors are fused into one weight."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.kernels.signature import WeightRef

WeightRole = Literal["linear", "head", "embedding", "norm", "bias"]


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One tensor of the checkpoint that makes up a weight, or a part of it."""

    tensor: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight of the model: its parts are stacked along the first dimension in order.

    Attributes:
        name: what operations call it.
        role: what it is for; "head" is the projection to logits. Matrices may be repacked, norms and biases stay.
        neutral: for norms and biases, the value that changes nothing; None for matrices.
    """

    name: str
    parts: tuple[WeightPart, ...]
    role: WeightRole
    neutral: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole weight."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def size(self) -> int:
        """Number of elements of the weight."""
        return math.prod(self.shape)

    @property
    def ref(self) -> WeightRef:
        """The handle that operations use."""
        return WeightRef(self.name)


def parameters(weights: Iterable[WeightSpec], *roles: WeightRole) -> int:
    """Number of distinct parameters in weights of these roles, or of all; what two weights share counts once."""
    parts = {
        part.tensor: part.shape for weight in weights if weight.role in roles or not roles for part in weight.parts
    }
    return sum(math.prod(shape) for shape in parts.values())
