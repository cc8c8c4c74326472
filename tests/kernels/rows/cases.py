"""Operations on single rows and on their choice."""

from penstock.kernels.signature import Embedding, GatedActivation, Scale, SelectRows, SoftCap, WeightRef
from support.operations import Case

CASES = (
    Case("embedding", Embedding(WeightRef("weight")), (), weights={"weight": (11, 40)}),
    Case("silu", GatedActivation("silu"), (130,)),
    Case("gelu", GatedActivation("gelu_tanh"), (130,)),
    # Wide enough for torch to split between threads, inside rows and at no multiple of a vector.
    Case("wide silu", GatedActivation("silu"), (20006,)),
    Case("wide gelu", GatedActivation("gelu_tanh"), (20006,)),
    Case("wide scale", Scale(8.48528137423857), (10003,)),
    Case("wide soft cap", SoftCap(1.5), (10003,)),
    Case("scale", Scale(8.48528137423857), (33,)),
    Case("soft cap", SoftCap(1.5), (33,)),
    Case("some rows", SelectRows(), (33,)),
    Case("all rows", SelectRows(), (33,), wanted=tuple(range(11))),
)
