"""Norms of rows, of rows added to the residual stream, and of heads."""

from penstock.kernels.signature import AddRmsNorm, HeadLayout, HeadNorm, RmsNorm, WeightRef
from support.operations import Case

WEIGHT, KEY = WeightRef("weight"), WeightRef("key")
HEADS = HeadLayout(4, 2, 24)

CASES = (
    Case("rows", RmsNorm(WEIGHT, 1e-6), (72,), weights={"weight": (72,)}),
    Case("rows, unit offset", RmsNorm(WEIGHT, 1e-6, unit_offset=True), (72,), weights={"weight": (72,)}),
    Case("wide rows", RmsNorm(WEIGHT, 1e-6), (5003,), weights={"weight": (5003,)}),
    Case("rows, large eps", RmsNorm(WEIGHT, 0.5), (33,), weights={"weight": (33,)}),
    Case("added", AddRmsNorm(WEIGHT, 1e-6), (72, 72), weights={"weight": (72,)}),
    Case("added, unit offset", AddRmsNorm(WEIGHT, 1e-3, unit_offset=True), (72, 72), weights={"weight": (72,)}),
    Case("heads", HeadNorm(HEADS, WEIGHT, KEY, 1e-6), (HEADS.fused_width,), weights={"weight": (24,), "key": (24,)}),
    Case(
        "heads, unit offset",
        HeadNorm(HEADS, WEIGHT, KEY, 1e-2, unit_offset=True),
        (HEADS.fused_width,),
        weights={"weight": (24,), "key": (24,)},
    ),
)
