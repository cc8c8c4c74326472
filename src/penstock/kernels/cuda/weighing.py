"""How much attention is given to each place of a context: a pass behind attention, for rows that ask.

Attention itself never has a query's weights: it goes through a context with a running maximum. It leaves the maximum
and the total of each query, so that one more product with the keys gives the weights.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.attention import scores_of
from penstock.kernels.cuda.values import kept_values


@triton.jit(do_not_specialize=["table_stride", "masses_stride", "window"])
def weigh_kernel(
    qkv, totals, masses,
    keys, key_scales,
    tables, contexts, dropped, starts, added, rows, asked, table_stride, masses_stride,
    scale, softcap, window,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    KEPT: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, GROUPS: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Programs: (one that asks, BLOCK_N places of its context). Each place has one program: sums have one order.

    masses float32 [those that ask, places]: a row of the step, `rows`, gets added what its last `asked` queries give to
    each place, over query heads. totals float32 [tokens, query heads, 2]: as `attend_kernel` leaves them.
    """
    one = tl.program_id(0)
    row, queries = tl.load(rows + one), tl.load(asked + one)
    count, start = tl.load(added + row), tl.load(starts + row)
    context = tl.load(contexts + row) - tl.load(dropped + row)
    at = tl.program_id(1) * BLOCK_N
    if at < context:
        SHARE: tl.constexpr = QUERY_HEADS // (KV_HEADS * GROUPS)
        QUERIES: tl.constexpr = BLOCK_M // SHARE
        place, column, lane = at + tl.arange(0, BLOCK_N), tl.arange(0, PADDED), tl.arange(0, BLOCK_M)
        low = context * 0
        if WINDOWED:
            low = tl.maximum(context - queries - window + 1, 0)
        there = (place >= low) & (place < context)
        table = tables + row.to(tl.int64) * table_stride
        block = tl.load(table + place // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        sums = tl.zeros([BLOCK_N], tl.float32)
        for head in range(KV_HEADS):
            entry = place % BLOCK_SIZE * KV_HEADS + head
            offset = (block * BLOCK_STRIDE + entry * SIZE)[:, None] + column[None, :]
            inside = there[:, None] & (column < SIZE)[None, :]
            key = kept_values(keys, key_scales, offset, block * SCALE_STRIDE + entry, inside, there, True, KEPT, TYPE)
            for part in range(GROUPS):
                query_head = (head * GROUPS + part) * SHARE + lane % SHARE
                for first in range(count - queries, count, QUERIES):
                    turn = first + lane // SHARE
                    own = (lane // SHARE < QUERIES) & (turn < count)
                    token = (start + turn).to(tl.int64)
                    query = tl.load(
                        qkv + token[:, None] * WIDTH + query_head[:, None] * SIZE + column[None, :],
                        mask=own[:, None] & (column < SIZE)[None, :],
                        other=0.0,
                    )
                    slot = (token * QUERY_HEADS + query_head) * 2
                    peak = tl.load(totals + slot, mask=own, other=0.0)
                    total = tl.load(totals + slot + 1, mask=own, other=1.0)
                    position = context - count + turn
                    seen = own[:, None] & there[None, :] & (place[None, :] <= position[:, None])
                    if WINDOWED:
                        seen = seen & (place[None, :] > position[:, None] - window)
                    scores = scores_of(query, key, scale, softcap, CAPPED, TYPE, WIDE)
                    scores = tl.where(seen, scores, float("-inf"))
                    sums += tl.sum(tl.exp2(scores - peak[:, None]) / total[:, None], 0)
        target = masses + one.to(tl.int64) * masses_stride + place
        tl.store(target, tl.load(target, mask=there, other=0.0) + sums, mask=there)
