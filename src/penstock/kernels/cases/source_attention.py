"""Attention to sources, which have more tokens than contexts or fewer."""

from penstock.core.kv import LayerKV
from penstock.kernels.cases.attention import SINGLE, WIDE, WIDEST
from penstock.kernels.cases.case import Case, Use
from penstock.kernels.signature import HeadLayout, SourceAttention

# Of models of 512 columns.
SMALL = HeadLayout(8, 8, 64)
# (tokens of the source, tokens added, context) of each row
MIXED = (
    (1, 1, 1),
    (5, 1, 70),
    (16, 1, 2),
    (17, 1, 16),
    (64, 2, 2),
    (65, 3, 40),
    (3, 40, 40),
    (40, 5, 9),
)


def _case(name: str, heads: HeadLayout, rows: tuple[tuple[int, int, int], ...], use: Use = "tests") -> Case:
    return Case(
        name,
        SourceAttention(heads, 0, 0.4),
        (heads.query_width,),
        tuple((added, context) for _, added, context in rows),
        kv=LayerKV(heads.kv_heads, heads.head_dim, source=True),
        sources=tuple(source for source, _, _ in rows),
        use=use,
    )


CASES = (
    _case("sources", SINGLE, MIXED),
    _case("sources, wide heads", WIDE, ((33, 1, 1), (2, 1, 40), (100, 17, 20))),
    _case("sources of very different length", WIDEST, ((1500, 1, 5), (3, 1, 600), (700, 1, 3))),
    _case("1 decode, source of 30", SMALL, ((30, 1, 20),), "bench"),
    _case("32 decodes, sources of 30", SMALL, ((30, 1, 20),) * 32, "bench"),
    _case("32 decodes, sources of 512", SMALL, ((512, 1, 20),) * 32, "bench"),
)
