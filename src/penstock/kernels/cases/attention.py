"""Attention on ragged batches: (tokens added, context) of each row, single tokens first."""

from typing import Any

from penstock.core.kv import LayerKV
from penstock.kernels.cases import llama
from penstock.kernels.cases.case import Case, Use
from penstock.kernels.places import BucketBias, WeightRef
from penstock.kernels.signature import Attention, HeadLayout

GROUPED = HeadLayout(6, 2, 8)
SINGLE = HeadLayout(3, 3, 16)
# Head sizes of common models, which vector kernels are for.
WIDE = HeadLayout(8, 2, 64)
WIDEST = HeadLayout(3, 1, 128)
# Keys that are values, too, in whole vectors and beyond.
LATENT = HeadLayout(5, 1, 72, latent=True)
# DeepSeek's, with more query heads than a GPU computes together.
WIDEST_LATENT = HeadLayout(20, 1, 576, latent=True)
# As many query heads as do not make equal parts of rows, and more than are multiplied in one go.
ODD_LATENT = HeadLayout(13, 1, 576, latent=True)
MANY_LATENT = HeadLayout(37, 1, 80, latent=True)
SINKS = WeightRef("sinks")
BEFORE = BucketBias(WeightRef("bias"), 32, 128, behind=False)
FEW_BEFORE = BucketBias(WeightRef("bias"), 8, 20, behind=False)
MIXED = ((1, 1), (1, 16), (1, 17), (1, 50), (1, 33), (4, 4), (17, 17), (3, 40), (16, 64), (2, 18), (33, 33))
DECODES = tuple((1, context) for context in (1, 2, 15, 16, 17, 31, 32, 33, 100))
EQUAL = ((1, 30), (1, 30), (1, 30))
UNEVEN = ((1, 1500), (1, 3), (1, 700), (1, 5), (1, 1400), (1, 40))


def _case(
    name: str,
    heads: HeadLayout,
    rows: tuple[tuple[int, int], ...],
    *,
    scale: float = 0.4,
    use: Use = "tests",
    **options: Any,
) -> Case:
    operation = Attention(heads, 0, scale, **options)
    weights: dict[str, tuple[int, ...]] = {}
    if operation.sinks is not None:
        weights[operation.sinks.name] = (heads.query_heads,)
    if (bias := operation.bias) is not None:
        weights[bias.weight.name] = (bias.buckets, heads.query_heads)
    kv = LayerKV(heads.kv_heads, heads.head_dim, latent=heads.latent)
    return Case(name, operation, (operation.row_width,), rows, weights, kv=kv, use=use)


CASES = (
    _case("mixed", GROUPED, MIXED),
    _case("mixed, one query head per key head", SINGLE, MIXED),
    _case("mixed, window", GROUPED, MIXED, window=19),
    _case("mixed, window of one", GROUPED, MIXED, window=1),
    _case("mixed, window of a block", GROUPED, MIXED, window=16),
    _case("mixed, soft cap", GROUPED, MIXED, softcap=1.5),
    _case("mixed, window and soft cap", GROUPED, MIXED, window=19, softcap=1.5),
    _case("mixed, sinks", GROUPED, MIXED, sinks=SINKS),
    _case("mixed, latent", LATENT, MIXED),
    _case("mixed, widest latent", WIDEST_LATENT, ((1, 40), (1, 300), (3, 20)), scale=192**-0.5),
    _case(
        "mixed, odd heads of widest latent", ODD_LATENT, ((1, 16), (1, 64), (1, 65), (1, 300), (2, 70)), scale=192**-0.5
    ),
    _case("mixed, many heads of latent", MANY_LATENT, MIXED),
    _case("mixed, of another layer", GROUPED, MIXED, borrows=True),
    _case("mixed, of another layer, window", WIDE, MIXED, window=19, borrows=True),
    _case("decodes, of another layer", WIDEST, DECODES, borrows=True),
    _case("decodes", GROUPED, DECODES),
    _case("decodes, window", GROUPED, DECODES, window=20),
    _case("decodes of equal length", GROUPED, EQUAL),
    _case("decodes of equal length, window", GROUPED, EQUAL, window=9),
    _case("one decode", GROUPED, ((1, 45),)),
    _case("one decode, window", GROUPED, ((1, 45),), window=11),
    _case("one decode, soft cap", GROUPED, ((1, 45),), softcap=2.0),
    _case("decodes of very different length", GROUPED, UNEVEN),
    _case("decodes of very different length, window", GROUPED, UNEVEN, window=1000),
    _case("decodes of very different length, window and sinks", WIDE, UNEVEN, window=1000, sinks=SINKS),
    _case("decodes of very different length, sinks", GROUPED, UNEVEN, sinks=SINKS),
    _case("mixed, wide heads", WIDE, MIXED),
    _case("mixed, wide heads, window", WIDE, MIXED, window=19),
    _case("mixed, widest heads, soft cap", WIDEST, MIXED, softcap=1.5),
    _case("decodes, wide heads", WIDE, DECODES),
    _case("decodes of very different length, wide heads, window", WIDE, UNEVEN, window=1000),
    _case("prompt much longer than the window", GROUPED, ((700, 700),), window=40),
    _case("chunk much longer than the window", GROUPED, ((600, 650),), window=40),
    _case("decodes of very different length, latent", LATENT, UNEVEN),
    _case("decodes of very different length, odd heads of widest latent", ODD_LATENT, UNEVEN, scale=192**-0.5),
    _case("decodes of very different length, many heads of latent", MANY_LATENT, UNEVEN),
    _case("mixed, bias by buckets", SINGLE, MIXED, bias=BEFORE),
    _case("mixed, bias by few buckets", GROUPED, MIXED, bias=FEW_BEFORE),
    _case("mixed, widest heads, bias, window and soft cap", WIDEST, MIXED, bias=BEFORE, window=19, softcap=1.5),
    _case("decodes of very different length, bias by buckets", WIDE, UNEVEN, bias=BEFORE),
    _case("1 decode over 512", llama.HEADS, ((1, 512),), use="bench"),
    _case("1 decode over 2,048", llama.HEADS, ((1, 2048),), use="bench"),
    _case("1 decode over 8,192", llama.HEADS, ((1, 8192),), use="bench"),
    _case("16 decodes over 512", llama.HEADS, ((1, 512),) * 16, use="bench"),
    _case("16 decodes over 2,048", llama.HEADS, ((1, 2048),) * 16, use="bench"),
    _case("16 decodes over 8,192", llama.HEADS, ((1, 8192),) * 16, use="bench"),
    _case("first chunk of 512", llama.HEADS, ((512, 512),), use="bench"),
    _case("chunk of 512 of 2,048", llama.HEADS, ((512, 2048),), use="bench"),
)
