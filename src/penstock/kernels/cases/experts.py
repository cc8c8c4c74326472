"""Routers and experts: of few and many rows, with ties, groups and corrections."""

from penstock.kernels.cases.case import Case
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import Experts, GateName, HeadLinear, Route, Routing, SigmoidGate

ROUTER = WeightRef("weight")
GATE_UP, DOWN = WeightRef("gate_up"), WeightRef("down")


def _route(
    name: str, routing: Routing, *, rows: int = 5, bias: bool = False, correction: bool = False, scales: bool = False
) -> Case:
    vectors = {"bias": bias, "correction": correction, "scales": scales}
    weights = {"weight": (routing.experts, 33)} | {key: (routing.experts,) for key, there in vectors.items() if there}
    operation = Route(ROUTER, routing, *(WeightRef(key) if there else None for key, there in vectors.items()))
    return Case(name, operation, (33,), ((1, 1),) * rows, weights)


def _experts(
    name: str,
    sizes: tuple[int, int],
    experts: int,
    chosen: int,
    rows: int,
    gate: GateName = "silu",
    *,
    bias: bool = False,
) -> Case:
    """`sizes` are columns of the rows, and of an expert's hidden layer."""
    width, inner = sizes
    weights: dict[str, tuple[int, ...]] = {"gate_up": (experts * 2 * inner, width), "down": (experts * width, inner)}
    biases = {"gate_up_bias": (experts * 2 * inner,), "down_bias": (experts * width,)} if bias else {}
    refs = {name: WeightRef(name) for name in biases}
    operation = Experts(GATE_UP, DOWN, experts, gate, refs.get("gate_up_bias"), refs.get("down_bias"))
    return Case(name, operation, (width, 2 * chosen), ((1, 1),) * rows, weights | biases)


def _heads(name: str, inputs: int, outputs: int, heads: int, rows: int) -> Case:
    weights = {"weight": (heads * outputs, inputs)}
    return Case(name, HeadLinear(WeightRef("weight"), heads), (heads * inputs,), ((1, 1),) * rows, weights)


CASES = (
    _route("some of all", Routing(8, 2)),
    _route("all of all", Routing(3, 3, renormalise=False)),
    _route("sigmoid, with a bias", Routing(16, 4, score="sigmoid", epsilon=1e-20, scale=2.5), bias=True),
    _route(
        "of the best groups, corrected",
        Routing(16, 3, score="sigmoid", groups=4, kept_groups=2),
        rows=40,
        correction=True,
    ),
    _route("with a scale for each", Routing(8, 3), scales=True),
    _route("of groups by their best", Routing(12, 2, groups=3, kept_groups=1, best_of_group=1, renormalise=False)),
    # bfloat16 has no 257, so that indices must not be in it.
    _route("many experts", Routing(320, 3), rows=20),
    _experts("many experts", (32, 32), 320, 3, 20),
    _experts("one row", (64, 32), 4, 2, 1),
    _experts("rows of one expert", (32, 32), 1, 1, 30),
    _experts("few rows of many experts", (96, 64), 16, 3, 5),
    _experts("more rows than a tile", (64, 96), 4, 2, 90),
    _experts("biases, and a bounded gate", (64, 96), 5, 2, 40, "swigluoai", bias=True),
    _heads("one row", 64, 96, 3, 1),
    _heads("few rows", 32, 64, 5, 7),
    _heads("more rows than a tile", 96, 32, 2, 40),
    # Of that many inputs sums that are rounded otherwise choose other experts now and then.
    Case(
        "64 of 2,048 columns",
        Route(ROUTER, Routing(64, 8)),
        (2048,),
        weights={"weight": (64, 2048)},
        use="bench",
    ),
    # Small enough that the copies that take turns are made in a moment.
    Case(
        "4 of 32, 1,536 × 512",
        Experts(GATE_UP, DOWN, 32, "silu"),
        (1536, 8),
        weights={"gate_up": (32 * 1024, 1536), "down": (32 * 1536, 512)},
        use="bench",
    ),
    # DeepSeek-V2-Lite's way from latents to values.
    Case(
        "16 heads, 128 × 512",
        HeadLinear(WeightRef("weight"), 16),
        (16 * 512,),
        weights={"weight": (16 * 128, 512)},
        use="bench",
    ),
    Case("width 2,048", SigmoidGate(), (2048, 1), use="both"),
    Case("one column", SigmoidGate(), (40, 1)),
    Case("a column for each", SigmoidGate(), (40, 40)),
)
