"""Attention within rows, which have all of their tokens in the step."""

from penstock.kernels.cases.case import Case, Use
from penstock.kernels.places import BucketBias, WeightRef
from penstock.kernels.signature import HeadLayout, RowAttention

GROUPED = HeadLayout(6, 2, 8)
SINGLE = HeadLayout(3, 3, 16)
# Of MiniLM, of BERT's base size, and larger than a vector of either.
SMALL = HeadLayout(12, 12, 32)
BASE = HeadLayout(12, 12, 64)
WIDEST = HeadLayout(3, 1, 128)
LENGTHS = (1, 1, 2, 15, 16, 17, 33, 64, 65)
LONG = (700, 3, 513)


BUCKETS = BucketBias(WeightRef("bias"), 32, 128)
FEW = BucketBias(WeightRef("bias"), 8, 20)


def _case(
    name: str,
    heads: HeadLayout,
    lengths: tuple[int, ...],
    window: int | None = None,
    bias: BucketBias | None = None,
    seen: tuple[int, ...] = (),
    use: Use = "tests",
) -> Case:
    operation = RowAttention(heads, 0.4 if use == "tests" else heads.head_dim**-0.5, window, bias)
    rows = tuple((length, length) for length in lengths)
    weights = {bias.weight.name: (bias.buckets, heads.query_heads)} if bias is not None else {}
    return Case(name, operation, (heads.fused_width,), rows, weights, seen=seen, use=use)


CASES = (
    _case("rows", GROUPED, LENGTHS),
    _case("rows, one query head per key head", SINGLE, LENGTHS),
    _case("rows, small heads", SMALL, LENGTHS),
    _case("rows, widest heads", WIDEST, LENGTHS),
    _case("rows, window", GROUPED, LENGTHS, window=9),
    _case("rows, window of one", GROUPED, LENGTHS, window=1),
    _case("rows, window of a block", SMALL, LENGTHS, window=16),
    _case("rows, window beyond them", BASE, LENGTHS, window=100),
    _case("long rows", SMALL, LONG),
    _case("long rows, window", BASE, LONG, window=65),
    _case("rows, bias by buckets", GROUPED, LENGTHS, bias=BUCKETS),
    _case("rows, bias by few buckets", SMALL, LENGTHS, bias=FEW),
    _case("long rows, bias by buckets", BASE, LONG, bias=BUCKETS),
    _case("rows, window and bias", WIDEST, LENGTHS, window=9, bias=BUCKETS),
    _case("rows, some unseen", GROUPED, LENGTHS, seen=(1, 1, 1, 14, 16, 1, 20, 17, 64)),
    _case("rows, window, some unseen", SMALL, LENGTHS, window=9, seen=(1, 1, 1, 14, 16, 1, 20, 17, 64)),
    _case("long rows, window, some unseen", BASE, LONG, window=65, seen=(500, 2, 100)),
    _case("rows, bias, some unseen", WIDEST, LENGTHS, bias=BUCKETS, seen=(1, 1, 1, 14, 16, 1, 20, 17, 64)),
    _case("64 rows of 16, MiniLM", SMALL, (16,) * 64, use="bench"),
    _case("8 rows of 128, MiniLM", SMALL, (128,) * 8, use="bench"),
    _case("512 tokens, MiniLM", SMALL, (512,), use="bench"),
    _case("512 tokens, BERT base", BASE, (512,), use="bench"),
    _case("8,192 tokens, window of 64 on both sides", BASE, (8192,), window=65, use="bench"),
)
