"""Norms of rows, of rows added to the residual stream, and of heads."""

from penstock.kernels.cases import llama
from penstock.kernels.cases.case import Case
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import AddRmsNorm, HeadLayout, HeadNorm, LayerNorm, RmsNorm

WEIGHT, KEY = WeightRef("weight"), WeightRef("key")
HEADS = HeadLayout(4, 2, 24)
QUERIES = HeadLayout(5, 0, 24)
MODEL = {"weight": (llama.WIDTH,)}

CASES = (
    Case("rows", RmsNorm(WEIGHT, 1e-6), (72,), weights={"weight": (72,)}),
    Case("rows, unit offset", RmsNorm(WEIGHT, 1e-6, unit_offset=True), (72,), weights={"weight": (72,)}),
    Case("wide rows", RmsNorm(WEIGHT, 1e-6), (5003,), weights={"weight": (5003,)}),
    Case("rows, large eps", RmsNorm(WEIGHT, 0.5), (33,), weights={"weight": (33,)}),
    Case("layer", LayerNorm(WEIGHT, 1e-5), (72,), weights={"weight": (72,)}),
    Case("layer, bias", LayerNorm(WEIGHT, 1e-2, KEY), (5003,), weights={"weight": (5003,), "key": (5003,)}),
    Case("width 2,048", LayerNorm(WEIGHT, 1e-5), (llama.WIDTH,), weights=MODEL, use="both"),
    Case("added", AddRmsNorm(WEIGHT, 1e-6), (72, 72), weights={"weight": (72,)}),
    Case("added, unit offset", AddRmsNorm(WEIGHT, 1e-3, unit_offset=True), (72, 72), weights={"weight": (72,)}),
    Case("heads", HeadNorm(HEADS, WEIGHT, KEY, 1e-6), (HEADS.fused_width,), weights={"weight": (24,), "key": (24,)}),
    Case(
        "heads, unit offset",
        HeadNorm(HEADS, WEIGHT, KEY, 1e-2, unit_offset=True),
        (HEADS.fused_width,),
        weights={"weight": (24,), "key": (24,)},
    ),
    Case(
        "heads, values too",
        HeadNorm(HEADS, WEIGHT, KEY, 1e-2, values=True),
        (HEADS.fused_width,),
        weights={"weight": (24,), "key": (24,)},
    ),
    Case(
        "query heads alone", HeadNorm(QUERIES, WEIGHT, WEIGHT, 1e-2), (QUERIES.fused_width,), weights={"weight": (24,)}
    ),
    Case("width 2,048", RmsNorm(WEIGHT, 1e-5), (llama.WIDTH,), weights=MODEL, use="both"),
    Case("width 2,048", AddRmsNorm(WEIGHT, 1e-5), (llama.WIDTH, llama.WIDTH), weights=MODEL, use="both"),
    Case(
        "32 / 8 heads of 64",
        HeadNorm(llama.HEADS, WEIGHT, KEY, 1e-6),
        (llama.HEADS.fused_width,),
        weights={"weight": (llama.HEADS.head_dim,), "key": (llama.HEADS.head_dim,)},
        use="both",
    ),
)
