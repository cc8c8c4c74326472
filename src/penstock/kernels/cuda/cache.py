"""Rotary position embedding, and what it makes of keys, and values, into the paged KV cache: one pass over a row."""

import triton
import triton.language as tl

from penstock.kernels.cuda.values import fp8_bytes


@triton.jit
def _round_to_even(x):
    # Adding and taking away 1.5 · 2^23 leaves no bits behind the point of what is below 2^22.
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _store(
    x, one, column, plane, scales, place, entry, SIZE: tl.constexpr, KEPT: tl.constexpr, TYPE: tl.constexpr
):  # fmt: skip
    """Heads [HEADS, PADDED], those of `one`, as they are or as bytes with a scale each: no number where not finite."""
    there = one[:, None] & (column < SIZE)[None, :]
    if KEPT == "plain":
        tl.store(plane + place[:, None] + column[None, :], x, mask=there)
    else:
        most = 127.0 if KEPT == "int8" else 448.0
        wide = x.to(tl.float32)
        magnitude = tl.where(there, tl.abs(wide), 0.0)
        # A comparison with what is not a number is false.
        broken = tl.sum(tl.where(magnitude <= 3.4028234663852886e38, 0, 1), 1) > 0
        # Divisions are rounded as everywhere else, so that bytes are the same as on a CPU.
        scale = tl.div_rn(tl.max(tl.where(magnitude <= 3.4028234663852886e38, magnitude, 0.0), 1), most)
        quotient = tl.div_rn(wide, tl.where(scale == 0.0, 1.0, scale)[:, None] + tl.zeros_like(wide))
        part = tl.where((broken | (scale == 0.0))[:, None], 0.0, quotient)
        part = tl.minimum(tl.maximum(part, -most), most)
        if KEPT == "int8":
            byte = _round_to_even(part).to(tl.int32).to(tl.uint8)
        else:
            byte = fp8_bytes(part)
        tl.store(plane + place[:, None] + column[None, :], byte, mask=there)
        tl.store(scales + entry, tl.where(broken, float("nan"), scale), mask=one)


@triton.jit
def _turned(
    x, swapped, position, angles, waves, known, column, SIZE: tl.constexpr, FAR: tl.constexpr, TYPE: tl.constexpr
):
    """Heads [HEADS, PADDED] at a position, turned by what `angles` have of it; where they end before, by the same."""
    inside = column < SIZE
    there = inside & (position < known) if FAR else inside
    entry = angles + position.to(tl.int64) * 2 * SIZE + column
    cos = tl.load(entry, mask=there, other=0.0).to(tl.float32)
    sin = tl.load(entry + SIZE, mask=there, other=0.0).to(tl.float32)
    if FAR:
        if position >= known:
            angle = position.to(tl.float32) * tl.load(waves + column, mask=inside, other=0.0)
            # These are libdevice's, which are exact to two units in the last place for large numbers, too.
            cos = tl.cos(angle) * tl.load(waves + SIZE + column, mask=inside, other=0.0)
            sin = tl.sin(angle) * tl.load(waves + 2 * SIZE + column, mask=inside, other=0.0)
            cos, sin = cos.to(TYPE).to(tl.float32), sin.to(TYPE).to(tl.float32)
    return (x.to(tl.float32) * cos[None, :] + swapped * sin[None, :]).to(TYPE)


@triton.jit(do_not_specialize=["table_stride"])
def rotate_and_store_kernel(
    qkv,
    result,
    angles,
    waves,
    known,
    positions,
    rows,
    token_of,
    keys,
    values,
    key_scales,
    value_scales,
    dropped,
    table,
    table_stride,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    ROTATES: tl.constexpr,
    FAR: tl.constexpr,
    STORES: tl.constexpr,
    LATENT: tl.constexpr,
    KEPT: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Programs: (entry, HEADS of the fused row). An entry is a token, in its own row or in one that shares it.

    qkv [tokens, fused width] → result, which is other memory, the same with query and key heads turned by `angles`
    [positions, 2, SIZE]: (cos, cos), then (-sin, sin). FAR: there may be positions from `known` on, which have none
    there, and are turned by `waves` (`kernels.rope.waves`). Key and value heads go to the slot of the entry's position,
    less those that its row has `dropped`, in its row of `table`; where keys are LATENT, there are no values. A token
    with several entries is written to `result` by each of them, alike.
    """
    WIDTH: tl.constexpr = QUERY_HEADS + (1 if LATENT else 2) * KV_HEADS
    entry, head = tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    token, row = tl.load(token_of + entry).to(tl.int64), tl.load(rows + entry).to(tl.int64)
    # A row of -1 pads a batch.
    if row >= 0:
        position = tl.load(positions + token)
        place = position - tl.load(dropped + row)
        column = tl.arange(0, PADDED)
        there = (head < WIDTH)[:, None] & (column < SIZE)[None, :]
        offset = ((token * WIDTH + head) * SIZE)[:, None]
        x = tl.load(qkv + offset + column[None, :], mask=there, other=0.0)
        if ROTATES:
            other = tl.where(column < SIZE // 2, column + SIZE // 2, column - SIZE // 2)
            swapped = tl.load(qkv + offset + other[None, :], mask=there, other=0.0).to(tl.float32)
            turned = _turned(x, swapped, position, angles, waves, known, column, SIZE, FAR, TYPE)
            x = tl.where((head < QUERY_HEADS + KV_HEADS)[:, None], turned, x)
            tl.store(result + offset + column[None, :], x, mask=there)
        if STORES:
            if tl.program_id(1) * HEADS + HEADS > QUERY_HEADS:
                block = tl.load(table + row * table_stride + place // BLOCK_SIZE).to(tl.int64)
                heads = place % BLOCK_SIZE * KV_HEADS
                first, scale = block * BLOCK_STRIDE + heads * SIZE, block * SCALE_STRIDE + heads
                own = head - QUERY_HEADS
                one = (own >= 0) & (own < KV_HEADS)
                _store(x, one, column, keys, key_scales, first + own * SIZE, scale + own, SIZE, KEPT, TYPE)
                if not LATENT:
                    own -= KV_HEADS
                    one = (own >= 0) & (own < KV_HEADS)
                    _store(x, one, column, values, value_scales, first + own * SIZE, scale + own, SIZE, KEPT, TYPE)
