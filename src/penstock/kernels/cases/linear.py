"""Projections, of few and many rows, with and without bias."""

from penstock.kernels.cases import llama
from penstock.kernels.cases.case import Case
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import GateName, Linear

WEIGHT, BIAS = WeightRef("weight"), WeightRef("bias")


def _case(name: str, inputs: int, outputs: int, rows: int, *, bias: bool = False) -> Case:
    weights = {"weight": (outputs, inputs), "bias": (outputs,)} if bias else {"weight": (outputs, inputs)}
    operation = Linear(WEIGHT, BIAS if bias else None)
    return Case(name, operation, (inputs,), ((1, 1),) * rows, weights)


def _measured(outputs: int, inputs: int, gate: GateName | None = None) -> Case:
    name = f"{outputs:,} × {inputs:,}"
    return Case(name, Linear(WEIGHT), (inputs,), ((1, 1),), {"weight": (outputs, inputs)}, gate=gate, use="bench")


CASES = (
    _case("one row", 64, 96, 1),
    _case("one row, bias", 64, 96, 1, bias=True),
    _case("odd sizes", 33, 47, 5),
    _case("odd sizes, bias", 33, 47, 5, bias=True),
    _case("more rows than the packing is for", 48, 320, 70, bias=True),
    _measured(llama.HEADS.fused_width, llama.WIDTH),
    _measured(llama.WIDTH, llama.HEADS.query_width),
    _measured(2 * llama.INNER, llama.WIDTH),
    _measured(llama.WIDTH, llama.INNER),
    _measured(llama.VOCABULARY, llama.WIDTH),
    _measured(2 * llama.INNER, llama.WIDTH, "silu"),
)
