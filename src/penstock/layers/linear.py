"""Linear projections; several may be fused into one matrix product."""

from dataclasses import dataclass, replace
from typing import Any

from penstock.core.shares import Share
from penstock.kernels.places import WeightRef
from penstock.kernels.tape import Tape, Value
from penstock.layers.weights import HeadCut, HeadRows, WeightPart, WeightSpec


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection from `inputs` columns; `parts` are (checkpoint name without suffix, columns) side by side.

    `name` is what the fused weight is called; `bias` says whether every part has one; `head` marks the projection to
    logits; `rows` has for each part how its rows stand in the file, where that is otherwise than kernels want them, and
    `cuts` which rows of its tensor it is. Where it is `across`, matrices are [inputs, outputs] in the file. Of several
    ranks, each has the rows of parts that `shares` say, or is given the columns that `over` says, and then makes a part
    of a sum.
    """

    name: str
    inputs: int
    parts: tuple[tuple[str, int], ...]
    bias: bool = False
    head: bool = False
    rows: tuple[HeadRows | None, ...] = ()
    cuts: tuple[HeadCut | None, ...] = ()
    across: bool = False
    shares: tuple[Share | None, ...] = ()
    over: Share | None = None

    @property
    def outputs(self) -> int:
        """Number of columns of the result."""
        return sum(columns if share is None else share.count for _, columns, _, _, share in self._each)

    def taking(self, *pieces: tuple[int, Share]) -> "Linear":
        """Of its parts, by their index, the rows of a rank, side by side."""

        def of(each: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(each[part] for part, _ in pieces) if each else ()

        taken = tuple(share for _, share in pieces)
        return replace(self, parts=of(self.parts), rows=of(self.rows), cuts=of(self.cuts), shares=taken)

    def given(self, over: Share) -> "Linear":
        """What a rank adds to the sum that the projection of all columns is. The first one adds the bias."""
        return replace(self, over=over, bias=self.bias and over.first == 0)

    @property
    def weight(self) -> WeightSpec:
        """The matrix [outputs, inputs], of all parts."""
        turned = HeadCut(1, self.inputs, 0, self.inputs, across=True) if self.across else None
        inputs = self.inputs if self.over is None else self.over.count
        parts = tuple(
            WeightPart(f"{name}.weight", (_own(columns, share), inputs), rows, cut or turned, share, self.over)
            for name, columns, rows, cut, share in self._each
        )
        return WeightSpec(f"{self.name}.weight", parts, "head" if self.head else "linear")

    @property
    def bias_weight(self) -> WeightSpec | None:
        """The vector [outputs], or None."""
        if not self.bias:
            return None
        parts = tuple(
            WeightPart(f"{name}.bias", (_own(columns, share),), rows, cut, share)
            for name, columns, rows, cut, share in self._each
        )
        return WeightSpec(f"{self.name}.bias", parts, "bias", neutral=0.0)

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """All weights that the projection reads."""
        bias = self.bias_weight
        return (self.weight,) if bias is None else (self.weight, bias)

    @property
    def _each(self) -> tuple[tuple[str, int, HeadRows | None, HeadCut | None, Share | None], ...]:
        none = (None,) * len(self.parts)
        each = zip(self.parts, self.rows or none, self.cuts or none, self.shares or none, strict=True)
        return tuple((*part, rows, cut, share) for part, rows, cut, share in each)

    def record(self, tape: Tape, x: Value, added: WeightRef | None = None) -> Value:
        """x [rows, inputs] → [rows, outputs]; where it has no bias, another vector can be `added`."""
        bias = self.bias_weight
        return tape.linear(x, self.weight.ref, self.outputs, added if bias is None else bias.ref)


def _own(rows: int, share: Share | None) -> int:
    return rows if share is None else share.count
