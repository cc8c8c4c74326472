"""Projections, of few and many rows, with and without bias."""

from penstock.kernels.signature import Linear, WeightRef
from support.operations import Case

WEIGHT, BIAS = WeightRef("weight"), WeightRef("bias")


def _case(name: str, inputs: int, outputs: int, rows: int, *, bias: bool = False) -> Case:
    weights = {"weight": (outputs, inputs), "bias": (outputs,)} if bias else {"weight": (outputs, inputs)}
    operation = Linear(WEIGHT, BIAS if bias else None)
    return Case(name, operation, (inputs,), ((1, 1),) * rows, weights)


CASES = (
    _case("one row", 64, 96, 1),
    _case("one row, bias", 64, 96, 1, bias=True),
    _case("odd sizes", 33, 47, 5),
    _case("odd sizes, bias", 33, 47, 5, bias=True),
    _case("more rows than the packing is for", 48, 320, 70, bias=True),
)
