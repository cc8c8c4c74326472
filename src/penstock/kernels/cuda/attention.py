"""Attention of a ragged batch over the paged KV cache: one kernel for decodes and for chunks of prompts.

A tile is up to BLOCK_M rows: neighbouring queries of one sequence, times the query heads that share a key head, so that
what is read of the cache serves all of them. It goes through the context in steps of BLOCK_N positions, counted from
position 0, with a running maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et
al., "FlashAttention", NeurIPS 2022).

A long context of few sequences is cut into segments that are computed side by side and merged in ascending order (Dao
et al., "Flash-Decoding", 2023). Where segments have a fixed number of positions, a tile that is computed in one piece
merges the same ones in the same order, so that a query's bits do not depend on what is beside it.

All positions here are places of the block table: of a row that has dropped some of its context, those behind have moved
up, and are all seen.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.values import kept_values, product

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _merge(peak, total, mixed, other_peak, other_total, other_mixed):
    """Two running softmaxes as one; one that has seen nothing (a peak of minus infinity) changes nothing."""
    most = tl.maximum(peak, other_peak)
    safe = tl.where(most == float("-inf"), 0.0, most)
    kept, added = tl.exp2(peak - safe), tl.exp2(other_peak - safe)
    return most, total * kept + other_total * added, mixed * kept[:, None] + other_mixed * added[:, None]


@triton.jit
def _divided(peak, total, mixed, sinks, head, there, SUNK: tl.constexpr):
    """The mix by its total, in which a head's sink takes part where there are any; and that total, with its peak."""
    if SUNK:
        sink = tl.load(sinks + head, mask=there, other=0.0).to(tl.float32) * LOG2_E
        # A sink is a number, so that the largest of both is one.
        most = tl.maximum(peak, sink)
        kept = tl.exp2(peak - most)
        total = total * kept + tl.exp2(sink - most)
        mixed = mixed * kept[:, None]
        peak = most
    total = tl.where(total == 0.0, 1.0, total)
    return mixed / total[:, None], peak, total


@triton.jit
def _capped(scores, softcap):
    # cap · tanh(s / cap), by an exponential that is never larger than 1.
    power = tl.exp(-2.0 * tl.abs(scores) / softcap)
    size = softcap * (1.0 - power) / (1.0 + power)
    return tl.where(scores < 0, -size, size)


@triton.jit
def scores_of(query, key, scale, softcap, CAPPED: tl.constexpr, TYPE: tl.constexpr, WIDE: tl.constexpr):
    """[queries, keys], as exponents of two."""
    scores = product(query, tl.trans(key), TYPE, WIDE)
    if CAPPED:
        return _capped(scores * scale, softcap) * LOG2_E
    else:
        return scores * (scale * LOG2_E)


@triton.jit
def _block(
    query, position, at, stop, low, peak, total, mixed,
    keys, values, key_scales, value_scales, table, head, scale, softcap, window,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr, BLOCK_N: tl.constexpr,
    LATENT: tl.constexpr, KEPT: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Peak, total and mix with those of positions [at, at + BLOCK_N); not MASKED, every lane sees all of them."""
    column = tl.arange(0, PADDED)
    place = at + tl.arange(0, BLOCK_N)
    # Entries of the table before the window and behind the context may be other rows', and are not read.
    there = (place >= low) & (place < stop)
    inside = there[:, None] & (column < SIZE)[None, :]
    if MASKED:
        block = tl.load(table + place // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
    else:
        block = tl.load(table + place // BLOCK_SIZE).to(tl.int64)
    entry = place % BLOCK_SIZE * KV_HEADS + head
    offset = (block * BLOCK_STRIDE + entry * SIZE)[:, None] + column[None, :]
    entry = block * SCALE_STRIDE + entry
    GUARDED: tl.constexpr = MASKED or SIZE < PADDED
    key = kept_values(keys, key_scales, offset, entry, inside, there, GUARDED, KEPT, TYPE)
    scores = scores_of(query, key, scale, softcap, CAPPED, TYPE, WIDE)
    if MASKED:
        seen = there[None, :] & (place[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (place[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    most = tl.maximum(peak, tl.max(scores, 1))
    safe = tl.where(most == float("-inf"), 0.0, most)
    weights = tl.exp2(scores - safe[:, None])
    kept = tl.exp2(peak - safe)
    total = total * kept + tl.sum(weights, 1)
    if LATENT:
        value = key
    else:
        value = kept_values(values, value_scales, offset, entry, inside, there, GUARDED, KEPT, TYPE)
    mixed = mixed * kept[:, None] + product(weights.to(TYPE), value, TYPE, WIDE)
    return most, total, mixed


@triton.jit
def _segment(
    query, position, begin, stop, low, clear,
    keys, values, key_scales, value_scales, table, head, scale, softcap, window,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LATENT: tl.constexpr, KEPT: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, CHUNKS: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Peak and total in powers of two, and the mix, of positions [begin, stop); those before `low` are not there.

    Without a window, every lane sees those before `clear`. In CHUNKS these are gone through without a look at who sees
    what; a single query's last positions would then wait for memory of their own.
    """
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, PADDED], tl.float32)
    masked = begin
    if CHUNKS and not WINDOWED:
        masked = tl.maximum(begin, tl.minimum(clear, stop) // BLOCK_N * BLOCK_N)
        for at in range(begin, masked, BLOCK_N):
            peak, total, mixed = _block(
                query, position, at, stop, low, peak, total, mixed,
                keys, values, key_scales, value_scales, table, head, scale, softcap, window,
                KV_HEADS, SIZE, PADDED, BLOCK_SIZE, BLOCK_STRIDE, SCALE_STRIDE, BLOCK_N,
                LATENT, KEPT, CAPPED, WINDOWED, False, TYPE, WIDE,
            )  # fmt: skip
    for at in range(masked, stop, BLOCK_N):
        peak, total, mixed = _block(
            query, position, at, stop, low, peak, total, mixed,
            keys, values, key_scales, value_scales, table, head, scale, softcap, window,
            KV_HEADS, SIZE, PADDED, BLOCK_SIZE, BLOCK_STRIDE, SCALE_STRIDE, BLOCK_N,
            LATENT, KEPT, CAPPED, WINDOWED, True, TYPE, WIDE,
        )  # fmt: skip
    return peak, total, mixed


@triton.jit
def _whole(
    query, position, base, stop, length, low, clear,
    keys, values, key_scales, value_scales, table, head, scale, softcap, window,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LATENT: tl.constexpr, KEPT: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, CHUNKS: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Peak, total and mix of positions [base, stop), in parts of `length` positions, merged in ascending order."""
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, PADDED], tl.float32)
    for at in range(base, stop, length):
        begin = tl.maximum(at, low // BLOCK_N * BLOCK_N)
        own_peak, own_total, own_mixed = _segment(
            query, position, begin, tl.minimum(at + length, stop), low, clear,
            keys, values, key_scales, value_scales, table, head, scale, softcap, window,
            KV_HEADS, SIZE, PADDED, BLOCK_SIZE, BLOCK_STRIDE, SCALE_STRIDE,
            BLOCK_M, BLOCK_N, LATENT, KEPT, CAPPED, WINDOWED, CHUNKS, TYPE, WIDE,
        )  # fmt: skip
        peak, total, mixed = _merge(peak, total, mixed, own_peak, own_total, own_mixed)
    return peak, total, mixed


@triton.jit
def _cut(low, stop, parts, BLOCK_N: tl.constexpr, SEGMENT: tl.constexpr):
    """Where the first part of the positions [low, stop) begins, and how long each is: a SEGMENT, or an equal part."""
    if SEGMENT > 0:
        return low // SEGMENT * SEGMENT, low * 0 + SEGMENT
    else:
        base = low // BLOCK_N * BLOCK_N
        length = (stop - base + parts - 1) // parts
        return base, tl.maximum((length + BLOCK_N - 1) // BLOCK_N * BLOCK_N, BLOCK_N)


@triton.jit
def _tile(
    row, first, group, contexts, dropped, starts, added, window,
    SHARE: tl.constexpr, BLOCK_M: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Each lane's token, position and query head, and whether it has one; the positions [low, stop) that lanes see.

    Behind these, where the positions end that all lanes see where there is no window.
    """
    QUERIES: tl.constexpr = BLOCK_M // SHARE
    context = tl.load(contexts + row) - tl.load(dropped + row)
    count, start = tl.load(added + row), tl.load(starts + row)
    lane = tl.arange(0, BLOCK_M)
    turn, query_head = first + lane // SHARE, group * SHARE + lane % SHARE
    there = (lane // SHARE < QUERIES) & (turn < count)
    low = first * 0
    if WINDOWED:
        low = tl.maximum(context - count + first - window + 1, 0)
    stop = context - count + tl.minimum(first + QUERIES, count)
    clear = context - count + first + 1
    return (start + turn).to(tl.int64), context - count + turn, query_head, there, low, stop, clear


@triton.jit
def _leave(peak, total, mixed, partial_mixed, partial_states, slot, column, one, any_seen, PADDED: tl.constexpr):
    """Store what one part of a context came to, for the lanes of `one`, in their slots."""
    tl.store(partial_states + slot * 2, peak, mask=one)
    tl.store(partial_states + slot * 2 + 1, total, mask=one)
    # Behind the context there is nothing, and no kernel reads it.
    if any_seen:
        tl.store(partial_mixed + slot[:, None] * PADDED + column[None, :], mixed, mask=one[:, None])


@triton.jit(do_not_specialize=["table_stride", "window"])
def attend_kernel(
    qkv, output, partial_mixed, partial_states, totals,
    keys, values, key_scales, value_scales, sinks,
    tables, contexts, dropped, starts, added, tile_rows, tile_firsts, table_stride,
    scale, softcap, window,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    LATENT: tl.constexpr, KEPT: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, SUNK: tl.constexpr,
    CHUNKS: tl.constexpr, SPLIT: tl.constexpr, SEGMENT: tl.constexpr, GROUPS: tl.constexpr, NOTED: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Programs: (tile, one of GROUPS of a KV head's query heads, split).

    Without SPLIT a program takes its tile's whole context, segment by segment.

    qkv [tokens, WIDTH] in TYPE, which begins with queries; output [tokens, query width]; with SPLIT, whose tiles have
    one query each, partial_mixed float32 [splits, tiles, query heads, PADDED] and partial_states float32 [splits,
    tiles, query heads, 2] instead. A SEGMENT of 0 cuts a tile's context into equal parts, one for each split.

    If NOTED, totals float32 [tokens, query heads, 2] gets peak and total of each query, its sink included.
    """
    tile, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHARE: tl.constexpr = QUERY_HEADS // (KV_HEADS * GROUPS)
    head = group // GROUPS
    row, first = tl.load(tile_rows + tile), tl.load(tile_firsts + tile)
    token, position, query_head, there, low, stop, clear = _tile(
        row, first, group, contexts, dropped, starts, added, window, SHARE, BLOCK_M, WINDOWED
    )
    column = tl.arange(0, PADDED)
    inside = there[:, None] & (column < SIZE)[None, :]
    query = tl.load(qkv + token[:, None] * WIDTH + query_head[:, None] * SIZE + column[None, :], mask=inside, other=0.0)
    base, length = _cut(low, stop, tl.num_programs(2), BLOCK_N, SEGMENT)
    table = tables + row.to(tl.int64) * table_stride
    if SPLIT:
        begin = tl.maximum(base + split * length, low // BLOCK_N * BLOCK_N)
        end = tl.minimum(base + (split + 1) * length, stop)
        peak, total, mixed = _segment(
            query, position, begin, end, low, clear,
            keys, values, key_scales, value_scales, table, head, scale, softcap, window,
            KV_HEADS, SIZE, PADDED, BLOCK_SIZE, BLOCK_STRIDE, SCALE_STRIDE,
            BLOCK_M, BLOCK_N, LATENT, KEPT, CAPPED, WINDOWED, CHUNKS, TYPE, WIDE,
        )  # fmt: skip
        one = there & (tl.arange(0, BLOCK_M) < SHARE)
        slot = (split.to(tl.int64) * tl.num_programs(0) + tile) * QUERY_HEADS + query_head
        _leave(peak, total, mixed, partial_mixed, partial_states, slot, column, one, begin < end, PADDED)
    else:
        peak, total, mixed = _whole(
            query, position, base, stop, length, low, clear,
            keys, values, key_scales, value_scales, table, head, scale, softcap, window,
            KV_HEADS, SIZE, PADDED, BLOCK_SIZE, BLOCK_STRIDE, SCALE_STRIDE,
            BLOCK_M, BLOCK_N, LATENT, KEPT, CAPPED, WINDOWED, CHUNKS, TYPE, WIDE,
        )  # fmt: skip
        result, peak, total = _divided(peak, total, mixed, sinks, query_head, there, SUNK)
        if NOTED:
            slot = (token * QUERY_HEADS + query_head) * 2
            tl.store(totals + slot, peak, mask=there)
            tl.store(totals + slot + 1, total, mask=there)
        offset = token[:, None] * (QUERY_HEADS * SIZE) + query_head[:, None] * SIZE + column[None, :]
        tl.store(output + offset, result.to(TYPE), mask=inside)


@triton.jit(do_not_specialize=["splits", "window"])
def merge_kernel(
    output, partial_mixed, partial_states, totals, sinks, contexts, dropped, starts, tile_rows, splits, window,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr, SUNK: tl.constexpr, SEGMENT: tl.constexpr, GROUPS: tl.constexpr,
    AHEAD: tl.constexpr, NOTED: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Programs: (tile, one of GROUPS of a KV head's query heads). Merges what `attend_kernel` left of a tile's query.

    In ascending order, and only the parts that its context has: graphs are captured for the longest one. AHEAD are read
    before they are needed. NOTED is as there.
    """
    tile, group = tl.program_id(0), tl.program_id(1)
    SHARE: tl.constexpr = QUERY_HEADS // (KV_HEADS * GROUPS)
    row = tl.load(tile_rows + tile)
    stop = tl.load(contexts + row) - tl.load(dropped + row)
    low = stop * 0
    if WINDOWED:
        low = tl.maximum(stop - window, 0)
    base, length = _cut(low, stop, splits, BLOCK_N, SEGMENT)
    lane, column = tl.arange(0, HEADS), tl.arange(0, PADDED)
    head, there = group * SHARE + lane, lane < SHARE
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, PADDED], tl.float32)
    for split in tl.range(0, tl.minimum((stop - base + length - 1) // length, splits), num_stages=AHEAD):
        slot = (tl.cast(split, tl.int64) * tl.num_programs(0) + tile) * QUERY_HEADS + head
        own_peak = tl.load(partial_states + slot * 2, mask=there, other=float("-inf"))
        own_total = tl.load(partial_states + slot * 2 + 1, mask=there, other=0.0)
        own_mixed = tl.load(partial_mixed + slot[:, None] * PADDED + column[None, :], mask=there[:, None], other=0.0)
        # What has seen something has a total, or one that is not a number; else nothing was stored.
        own_mixed = tl.where((own_total == 0.0)[:, None], 0.0, own_mixed)
        peak, total, mixed = _merge(peak, total, mixed, own_peak, own_total, own_mixed)
    result, peak, total = _divided(peak, total, mixed, sinks, head, there, SUNK)
    token = tl.load(starts + row).to(tl.int64)
    if NOTED:
        slot = (token * QUERY_HEADS + head) * 2
        tl.store(totals + slot, peak, mask=there)
        tl.store(totals + slot + 1, total, mask=there)
    offset = token * (QUERY_HEADS * SIZE) + head[:, None] * SIZE + column[None, :]
    tl.store(output + offset, result.to(TYPE), mask=there[:, None] & (column < SIZE)[None, :])
