"""Rotary positions, near and far, and what is stored of them."""

from penstock.core.kv import LayerKV
from penstock.kernels.cases import llama
from penstock.kernels.cases.case import Case
from penstock.kernels.places import LinearRope, Llama3Rope, ProportionalRope, RopeSpec
from penstock.kernels.signature import HeadLayout, QueryScale, Rotary, WriteKV

HEADS = HeadLayout(4, 2, 24)
QUERIES = HeadLayout(5, 0, 24)
LATENT = HeadLayout(4, 1, 24, latent=True)
MODEL = RopeSpec(llama.HEADS.head_dim, 500_000.0, Llama3Rope(32.0, 1.0, 4.0, 8192))
FAR = ((1, 5000), (1, 2), (3, 2050))

CASES = (
    Case("plain", Rotary(HEADS, RopeSpec(24, 10000.0)), (HEADS.fused_width,)),
    Case("plain, far", Rotary(HEADS, RopeSpec(24, 10000.0)), (HEADS.fused_width,), FAR),
    Case("linear", Rotary(HEADS, RopeSpec(24, 10000.0, LinearRope(4.0))), (HEADS.fused_width,)),
    Case("llama3", Rotary(HEADS, RopeSpec(24, 500.0, Llama3Rope(8.0, 1.0, 4.0, 32))), (HEADS.fused_width,)),
    Case("many heads", Rotary(HeadLayout(160, 80, 24), RopeSpec(24, 10000.0)), (24 * 320,)),
    Case("proportional", Rotary(HEADS, RopeSpec(24, 500.0, ProportionalRope(6, 2.0))), (HEADS.fused_width,)),
    Case("query heads alone", Rotary(QUERIES, RopeSpec(24, 10000.0)), (QUERIES.fused_width,)),
    Case("latent", Rotary(LATENT, RopeSpec(24, 10000.0)), (LATENT.fused_width,)),
    Case("query scale", QueryScale(HEADS, 0.3, 16), (HEADS.fused_width,)),
    Case("query scale, far", QueryScale(LATENT, 0.1, 700), (LATENT.fused_width,), FAR),
    Case("write", WriteKV(HEADS, 0), (HEADS.fused_width,), kv=LayerKV(2, 24)),
    Case("write, latent", WriteKV(LATENT, 0), (LATENT.fused_width,), kv=LayerKV(1, 24, latent=True)),
    Case(
        "write, shared",
        WriteKV(HEADS, 0),
        (HEADS.fused_width,),
        kv=LayerKV(2, 24),
        shared=((1, 0), (1, 2), (4, 2), (8, 2), (9, 2)),
    ),
    Case(
        "write, shared, heads of 64",
        WriteKV(HeadLayout(2, 2, 64), 0),
        (HeadLayout(2, 2, 64).fused_width,),
        kv=LayerKV(2, 64),
        shared=((1, 0), (1, 2), (4, 2), (8, 2), (9, 2)),
    ),
    Case("32 / 8 heads of 64", Rotary(llama.HEADS, MODEL), (llama.HEADS.fused_width,), use="both"),
    Case("32 / 8 heads of 64", QueryScale(llama.HEADS, 0.1, 8192), (llama.HEADS.fused_width,), use="both"),
    Case("32 / 8 heads of 64", WriteKV(llama.HEADS, 0), (llama.HEADS.fused_width,), kv=llama.KV, use="both"),
)
