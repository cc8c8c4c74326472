"""Norms and gated activations: one program for a row, or for a head of one, whose sum is the same in any batch."""

import triton
import triton.language as tl


@triton.jit
def _normed(x, weight, there, eps, SIZE: tl.constexpr, UNIT_OFFSET: tl.constexpr):
    """x / sqrt(mean(x²) + eps) · weight in float32, to be rounded where it is stored."""
    mean = tl.sum(tl.where(there, x * x, 0.0), 0) / SIZE
    quotient = x / tl.sqrt(mean + eps)
    if UNIT_OFFSET:
        return quotient * (1.0 + weight)
    else:
        return quotient * weight


@triton.jit
def norm_kernel(
    x,
    residual,
    weight,
    normed,
    total,
    eps,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ADDS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Programs: (row). normed [rows, WIDTH] of x, or with ADDS of total = x + residual, rounded to TYPE first."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < WIDTH
    values = tl.load(x + row * WIDTH + column, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        values += tl.load(residual + row * WIDTH + column, mask=there, other=0.0).to(tl.float32)
        rounded = values.to(TYPE)
        tl.store(total + row * WIDTH + column, rounded, mask=there)
        values = rounded.to(tl.float32)
    factor = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    result = _normed(values, factor, there, eps, WIDTH, UNIT_OFFSET)
    tl.store(normed + row * WIDTH + column, result.to(TYPE), mask=there)


@triton.jit
def layer_norm_kernel(
    x,
    weight,
    bias,
    result,
    eps,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BIASED: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Programs: (row). result [rows, WIDTH]: x less its mean, by its deviation, times the weight, with the bias."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < WIDTH
    values = tl.load(x + row * WIDTH + column, mask=there, other=0.0).to(tl.float32)
    centred = tl.where(there, values - tl.sum(values, 0) / WIDTH, 0.0)
    quotient = centred / tl.sqrt(tl.sum(centred * centred, 0) / WIDTH + eps)
    found = quotient * tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    if BIASED:
        found += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    tl.store(result + row * WIDTH + column, found.to(TYPE), mask=there)


@triton.jit
def head_norm_kernel(
    qkv,
    query_weight,
    key_weight,
    result,
    eps,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    VALUES: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Programs: (token, HEADS of the fused row). Query and key heads are normed, value heads copied.

    With VALUES these are normed, too, by a weight of 1.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    WIDTH: tl.constexpr = QUERY_HEADS + 2 * KV_HEADS
    column = tl.arange(0, PADDED)
    there = (head < WIDTH)[:, None] & (column < SIZE)[None, :]
    offset = ((token * WIDTH + head) * SIZE)[:, None] + column[None, :]
    values = tl.load(qkv + offset, mask=there, other=0.0)
    of_query = tl.load(query_weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    of_key = tl.load(key_weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    factor = tl.where((head < QUERY_HEADS)[:, None], of_query[None, :], of_key[None, :])
    wide = values.to(tl.float32)
    mean = tl.sum(tl.where(there, wide * wide, 0.0), 1) / SIZE
    quotient = wide / tl.sqrt(mean + eps)[:, None]
    normed = quotient * (1.0 + factor) if UNIT_OFFSET else quotient * factor
    rest = quotient.to(TYPE) if VALUES else values
    normed = tl.where((head < QUERY_HEADS + KV_HEADS)[:, None], normed.to(TYPE), rest)
    tl.store(result + offset, normed, mask=there)


@triton.jit
def gated_kernel(gate_up, result, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, TYPE: tl.constexpr):
    """Programs: (row, block of columns). What the gate of that name makes of [rows, 2 · WIDTH]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=there, other=0.0).to(tl.float32)
    if GATE == "swigluoai":
        gate, up = tl.where(gate > 7.0, 7.0, gate), tl.where(up > 7.0, 7.0, up)
        active = gate / (1.0 + tl.exp(-1.702 * gate))
        up = tl.where(up < -7.0, -7.0, up) + 1.0
    elif GATE == "silu":
        active = gate / (1.0 + tl.exp(-gate))
    elif GATE == "gelu":
        active = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # tanh(x) = 1 - 2 / (1 + e^2x), which has no overflow that is not its limit.
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = 0.5 * gate * (2.0 - 2.0 / (1.0 + tl.exp(2.0 * inner)))
    tl.store(result + row * WIDTH + column, (active.to(TYPE).to(tl.float32) * up).to(TYPE), mask=there)
