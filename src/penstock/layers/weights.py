"""What a layer needs from a checkpoint, as data: names, shapes, and which tensors are fused into one weight."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.core.shares import Share
from penstock.kernels.places import WeightRef

WeightRole = Literal["linear", "router", "head", "embedding", "table", "positions", "norm", "bias"]


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows of heads that stand in another order than that in which kernels turn them.

    In the first `heads` · `size` rows of a tensor, pairs that turn together are the first `turned` rows of each head:
    neighbours where they are `paired`, else halves of these rows. For kernels they are halves of the whole head.

    Attributes:
        heads: how many there are; rows behind them stay.
        size: rows of a head.
        before: rows of each head that stay where they are; what is said of a head is true of what is behind them.
    """

    heads: int
    size: int
    turned: int
    paired: bool
    before: int = 0

    def order(self, rows: int) -> list[int]:
        """For each of a tensor's rows, as kernels want them, its place in the file."""
        size = self.size - self.before
        pairs, half = self.turned // 2, size // 2
        step, other = (2, 1) if self.paired else (1, pairs)
        low, high = [step * pair for pair in range(pairs)], [step * pair + other for pair in range(pairs)]
        still = list(range(self.turned, size))
        behind = [*low, *still[: half - pairs], *high, *still[half - pairs :]]
        head = [*range(self.before), *(self.before + row for row in behind)]
        turned = [first + row for first in range(0, self.heads * self.size, self.size) for row in head]
        return [*turned, *range(len(turned), rows)]


@dataclass(frozen=True, slots=True)
class HeadCut:
    """Of a tensor's `heads` heads of `size` rows, `count` rows of each from `first` on; `across`, as columns."""

    heads: int
    size: int
    first: int
    count: int
    across: bool = False


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One tensor of the checkpoint, or a part of one, that makes up a weight, or a part of it.

    Attributes:
        shape: of what becomes of it here.
        rows: the order of its rows, where kernels want another.
        cut: which of its rows are taken, where others are for another weight.
        share: of these rows, in their order here, those of this rank; None: all.
        over: the same of its columns.
    """

    tensor: str
    shape: tuple[int, ...]
    rows: HeadRows | None = None
    cut: HeadCut | None = None
    share: Share | None = None
    over: Share | None = None

    @property
    def name(self) -> str:
        """Tells it from other parts of the same tensor."""
        cut = "" if self.cut is None else f", rows from {self.cut.first} of each head"
        share = "" if self.share is None else f", rows {self.share.first} to {self.share.first + self.share.count}"
        return f"{self.tensor}{cut}{share}"

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape with the rows and columns of all ranks."""
        rows = self.shape[:1] if self.share is None else (self.share.of,)
        return rows + (self.shape[1:] if self.over is None else (self.over.of,))

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        whole = self.whole
        if self.cut is None:
            return whole
        rows = self.cut.heads * self.cut.size
        return (rows, whole[0] // self.cut.heads) if self.cut.across else (rows, *whole[1:])

    @property
    def places(self) -> list[int]:
        """Of each of its rows, as kernels want them, its row in the whole tensor, which is not cut across."""
        taken, cut = list(range(self.whole[0])), self.cut
        if cut is not None:
            taken = [cut.size * head + cut.first + row for head in range(cut.heads) for row in range(cut.count)]
        found = taken if self.rows is None else [taken[row] for row in self.rows.order(len(taken))]
        return found if self.share is None else found[self.share.span]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight of the model: its parts are stacked along the first dimension in order.

    Attributes:
        name: what operations call it.
        role: what it is for; "head" is the projection to logits, "table" has rows for tokens that are not multiplied,
            "router" is what chooses experts, which is in float32 whatever the model is. Other matrices may be
            repacked, norms and biases stay.
        experts, chosen: how many matrices of one shape it is, one below the other, and by how many of them a row is
            multiplied.
        neutral: for norms and biases, the value that changes nothing; None for matrices.
    """

    name: str
    parts: tuple[WeightPart, ...]
    role: WeightRole
    neutral: float | None = None
    experts: int = 1
    chosen: int = 1

    @property
    def used(self) -> int:
        """Number of elements that one row is multiplied by."""
        return self.size // self.experts * self.chosen

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole weight."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    def of_expert(self, expert: int) -> "WeightSpec":
        """The matrix of one of the experts that it has."""
        count = len(self.parts) // self.experts
        parts = self.parts[expert * count : (expert + 1) * count]
        return WeightSpec(f"{self.name}, expert {expert}", parts, self.role, self.neutral)

    @property
    def chooses(self) -> bool:
        """Whether it decides which experts a row gets, and is kept in float32 for that."""
        return self.role == "router"

    @property
    def over(self) -> Share | None:
        """The columns of this rank, where others have others."""
        return self.parts[0].over

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
        (part.tensor, part.cut, part.share): part.shape
        for weight in weights
        if weight.role in roles or not roles
        for part in weight.parts
    }
    return sum(math.prod(shape) for shape in parts.values())
