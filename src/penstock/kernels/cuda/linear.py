"""x · weightᵀ with weights of few bits, expanded on the way from memory to the multiplication.

A program makes a tile of outputs and goes through the inputs in ascending order, so that what it sums, and in which
order, follows from the weight alone. Sums of the same tile sizes are therefore the same bits in any batch.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.values import product

# The inputs of an int4 row come in runs of this many: the first half of a run are the low nibbles of its bytes.
NIBBLE_RUN = tl.constexpr(64)


@triton.jit
def _weights(
    data,
    scales,
    zeros,
    row,
    there_row,
    k,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    TYPE: tl.constexpr,
):
    """[N, K] weights at inputs `k`, in TYPE: plain, or of integers less their zero, times the scale of their group."""
    inside = there_row[:, None] & (k < INPUTS)[None, :]
    if KIND == "plain":
        return tl.load(data + row[:, None] * INPUTS + k[None, :], mask=inside, other=0.0)
    else:
        GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
        group = row[:, None] * GROUPS + (k // GROUP)[None, :]
        scale = tl.load(scales + group, mask=inside, other=0.0).to(tl.float32)
        if KIND == "int4":
            HALF: tl.constexpr = NIBBLE_RUN // 2
            at = k // NIBBLE_RUN * HALF + k % HALF
            byte = tl.load(data + row[:, None] * (INPUTS // 2) + at[None, :], mask=inside, other=0).to(tl.int32)
            shift = tl.where(k % NIBBLE_RUN < HALF, 0, 4)
            number = ((byte >> shift[None, :]) & 15).to(tl.float32)
            number -= tl.load(zeros + group, mask=inside, other=0).to(tl.float32)
        else:
            byte = tl.load(data + row[:, None] * INPUTS + k[None, :], mask=inside, other=0)
            number = byte.to(tl.int8, bitcast=True).to(tl.float32)
        return (number * scale).to(TYPE)


# Compiled once for all numbers of rows.
@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x,
    data,
    scales,
    zeros,
    bias,
    y,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TYPE: tl.constexpr,
    WIDE: tl.constexpr,
    OUT: tl.constexpr,
):
    """Programs: (block of outputs, block of rows). x [rows, INPUTS] in TYPE → y [rows, OUTPUTS] in OUT.

    data: [OUTPUTS, INPUTS] in TYPE ("plain"), int8 as uint8, or two integers of 4 bits to a byte;
    scales [OUTPUTS, groups], zeros uint8 of the same shape for "int4".
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    there_row, there_token = row < OUTPUTS, token < rows
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for at in range(0, INPUTS, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        left = tl.load(
            x + token[:, None] * INPUTS + k[None, :], mask=there_token[:, None] & (k < INPUTS)[None, :], other=0.0
        )
        right = _weights(data, scales, zeros, row, there_row, k, INPUTS, GROUP, KIND, TYPE)
        sums += product(left, tl.trans(right), TYPE, WIDE)
    if BIASED:
        sums += tl.load(bias + row, mask=there_row, other=0.0).to(tl.float32)[None, :]
    inside = there_token[:, None] & there_row[None, :]
    tl.store(y + token[:, None] * OUTPUTS + row[None, :], sums.to(OUT), mask=inside)


@triton.jit
def round_rows_kernel(x, integers, scales, INPUTS: tl.constexpr, PADDED: tl.constexpr):
    """Programs: (row). int8 of a row [INPUTS] whose largest magnitude becomes 127, and what one of them stands for."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < INPUTS
    values = tl.load(x + row * INPUTS + column, mask=there, other=0.0).to(tl.float32)
    # What is not finite makes the scale so too, and with it every output of the row.
    scale = tl.div_rn(tl.max(tl.abs(values), 0), 127.0) + 0.0 * tl.sum(values, 0)
    quotient = tl.div_rn(values, tl.where(scale > 0.0, scale, 1.0) + tl.zeros_like(values))
    number = (tl.where(scale > 0.0, quotient, 0.0) + 12582912.0) - 12582912.0
    tl.store(integers + row * INPUTS + column, number.to(tl.int8), mask=there)
    tl.store(scales + row, scale)


@triton.jit(do_not_specialize=["rows"])
def integer_linear_kernel(
    integers,
    row_scales,
    data,
    scales,
    bias,
    y,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EXACT: tl.constexpr,
    OUT: tl.constexpr,
):
    """Programs: (block of outputs, block of rows). int8 [rows, INPUTS] · int8 [OUTPUTS, INPUTS]ᵀ, summed exactly.

    Times both scales, float32 [rows] and [OUTPUTS]. EXACT multiplies in int32, where Triton is interpreted.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    there_row, there_token = row < OUTPUTS, token < rows
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for at in range(0, INPUTS, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        near = (k < INPUTS)[None, :]
        left = tl.load(integers + token[:, None] * INPUTS + k[None, :], mask=there_token[:, None] & near, other=0)
        right = tl.load(data + row[:, None] * INPUTS + k[None, :], mask=there_row[:, None] & near, other=0)
        right = tl.trans(right.to(tl.int8, bitcast=True))
        if EXACT:
            sums += tl.sum(left.to(tl.int32)[:, :, None] * right.to(tl.int32)[None, :, :], 1)
        else:
            sums = tl.dot(left, right, sums, out_dtype=tl.int32)
    factor = tl.load(row_scales + token, mask=there_token, other=0.0)[:, None]
    factor = factor * tl.load(scales + row, mask=there_row, other=0.0)[None, :]
    result = sums.to(tl.float32) * factor
    if BIASED:
        result += tl.load(bias + row, mask=there_row, other=0.0).to(tl.float32)[None, :]
    tl.store(
        y + token[:, None] * OUTPUTS + row[None, :], result.to(OUT), mask=there_token[:, None] & there_row[None, :]
    )
