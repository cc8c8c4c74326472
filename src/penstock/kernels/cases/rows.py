"""Operations on single rows and on their choice."""

from penstock.kernels.cases import llama
from penstock.kernels.cases.case import Case
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import (
    Activation,
    Add,
    Columns,
    Concatenate,
    Embedding,
    GatedActivation,
    Positions,
    Scale,
    SelectRows,
    SoftCap,
    Types,
)

CASES = (
    Case("embedding", Embedding(WeightRef("weight")), (), weights={"weight": (11, 40)}),
    Case("positions", Positions(WeightRef("weight")), (), weights={"weight": (64, 40)}),
    Case("no types", Types(WeightRef("weight")), (), weights={"weight": (2, 40)}),
    Case(
        "types",
        Types(WeightRef("weight")),
        (),
        rows=((1, 1), (3, 3), (2, 2)),
        weights={"weight": (2, 40)},
        types=(1, 0, 0, 1, 0, 1),
    ),
    Case("silu", GatedActivation("silu"), (130,)),
    Case("gelu", GatedActivation("gelu_tanh"), (130,)),
    Case("bounded gate", GatedActivation("swigluoai"), (130,)),
    # Wide enough for torch to split between threads, inside rows and at no multiple of a vector.
    Case("wide silu", GatedActivation("silu"), (20006,)),
    Case("wide gelu", GatedActivation("gelu_tanh"), (20006,)),
    Case("silu", Activation("silu"), (65,)),
    Case("gelu", Activation("gelu_tanh"), (65,)),
    Case("exact gelu", Activation("gelu"), (65,)),
    Case("exact gelu", GatedActivation("gelu"), (130,)),
    Case("add", Add(), (33, 33)),
    Case("concatenate", Concatenate(), (33, 18)),
    Case("heads beside heads", Concatenate(3), (33, 18)),
    Case("some columns", Columns(1, 5, 20), (33,)),
    Case("some columns of heads", Columns(3, 2, 7), (33,)),
    Case("wide scale", Scale(8.48528137423857), (10003,)),
    Case("wide soft cap", SoftCap(1.5), (10003,)),
    Case("scale", Scale(8.48528137423857), (33,)),
    Case("scale, rounded", Scale(8.48528137423857, rounded=True), (33,)),
    Case("scale by a weight", Scale(WeightRef("weight")), (33,), weights={"weight": (1,)}),
    Case("soft cap", SoftCap(1.5), (33,)),
    Case("some rows", SelectRows(), (33,)),
    Case("all rows", SelectRows(), (33,), wanted=tuple(range(11))),
    # A quarter of the vocabulary: a row costs the same whichever table it is from, and one is made for each format.
    Case(
        "32,064 × 2,048",
        Embedding(WeightRef("weight")),
        (),
        weights={"weight": (llama.VOCABULARY // 4, llama.WIDTH)},
        use="bench",
    ),
    Case("1,024 × 2,048", Positions(WeightRef("weight")), (), weights={"weight": (1024, llama.WIDTH)}, use="both"),
    Case("2 × 768", Types(WeightRef("weight")), (), weights={"weight": (2, 768)}, use="both"),
    Case("width 16,384", GatedActivation("silu"), (2 * llama.INNER,), use="both"),
    Case("width 2,048", Activation("silu"), (llama.WIDTH,), use="both"),
    Case("width 2,048", Add(), (llama.WIDTH, llama.WIDTH), use="both"),
    Case("width 2,048", Concatenate(), (llama.WIDTH, llama.WIDTH), use="both"),
    Case("128 of each 192", Columns(16, 0, 128), (16 * 192,), use="both"),
    Case("width 2,048", Scale(45.254833995939045), (llama.WIDTH,), use="both"),
    Case("width 128,256", SoftCap(30.0), (llama.VOCABULARY,), use="bench"),
    Case("width 2,048", SelectRows(), (llama.WIDTH,), use="both"),
)
