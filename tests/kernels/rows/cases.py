"""Operations on single rows and on their choice."""

from penstock.kernels.signature import Embedding, GatedActivation, Scale, SelectRows, SoftCap, WeightRef
from support.operations import Case

CASES = (
    Case("embedding", Embedding(WeightRef("weight")), (), weights={"weight": (11, 40)}),
    Case("silu", GatedActivation("silu"), (130,)),
    Case("gelu", GatedActivation("gelu_tanh"), (130,)),
    Case("scale", Scale(8.48528137423857), (33,)),
    Case("soft cap", SoftCap(1.5), (33,)),
    Case("some rows", SelectRows(), (33,)),
    Case("all rows", SelectRows(), (33,), wanted=tuple(range(11))),
)
