"""x · weightᵀ in E4M3 on both sides, by the GPU's own instructions: compute capability 8.9 and more.

Activations are rounded token by token, or in the groups of inputs that weights have scales for. A program makes a tile
of outputs and goes through the inputs in ascending order. What 128 inputs add is summed by the instructions, which on
some GPUs keep fewer bits than float32 has (DeepSeek-V3, arXiv 2412.19437, 3.3.2), and added up in float32.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.values import fp8_bytes, fp8_values

# The largest E4M3, and the largest float32.
MOST_FP8 = tl.constexpr(448.0)
MOST_FLOAT = tl.constexpr(3.4028234663852886e38)


@triton.jit
def round_fp8_kernel(
    x,
    rounded,
    scales,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
):
    """Programs: (row). E4M3 bytes of a row [INPUTS], the largest magnitude of each GROUP becoming 448.

    rounded: uint8 [rows, INPUTS]. scales: float32 [rows, groups], what a 1 of each group stands for; not a number
    where the group is not all finite.
    """
    GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
    row = tl.program_id(0).to(tl.int64)
    group, place = tl.arange(0, PADDED_GROUPS), tl.arange(0, PADDED_GROUP)
    column = group[:, None] * GROUP + place[None, :]
    there = (place < GROUP)[None, :] & (column < INPUTS)
    values = tl.load(x + row * INPUTS + column, mask=there, other=0.0).to(tl.float32)
    magnitude = tl.abs(values)
    # A comparison with what is not a number is false.
    finite = magnitude <= MOST_FLOAT
    broken = tl.sum(tl.where(finite, 0, 1), 1) > 0
    # Divisions are rounded as everywhere else, so that bytes are the same as on a CPU.
    scale = tl.div_rn(tl.max(tl.where(finite, magnitude, 0.0), 1), MOST_FP8)
    quotient = tl.div_rn(values, tl.where(scale == 0.0, 1.0, scale)[:, None] + tl.zeros_like(values))
    part = tl.where((broken | (scale == 0.0))[:, None], 0.0, quotient)
    part = tl.minimum(tl.maximum(part, -MOST_FP8), MOST_FP8)
    tl.store(rounded + row * INPUTS + column, fp8_bytes(part), mask=there)
    tl.store(scales + row * GROUPS + group, tl.where(broken, float("nan"), scale), mask=group < GROUPS)


# Compiled once for all numbers of rows.
@triton.jit(do_not_specialize=["rows"])
def fp8_linear_kernel(
    x,
    x_scales,
    data,
    scales,
    bias,
    y,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BYTES: tl.constexpr,
    OUT: tl.constexpr,
):
    """Programs: (block of outputs, block of rows). E4M3 [rows, INPUTS] · E4M3 [OUTPUTS, INPUTS]ᵀ → y in OUT.

    x_scales: float32 [rows, groups]. scales: float32 [OUTPUTS / ROWS, groups], one for ROWS outputs and GROUP inputs.
    A group is all inputs, or a multiple of BLOCK_K. BYTES: both are uint8 and multiplied in float32, where Triton is
    interpreted.
    """
    GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    there_row, there_token = row < OUTPUTS, token < rows
    x_scales += token * GROUPS
    scales += row // ROWS * GROUPS
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for at in range(0, INPUTS, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        near = (k < INPUTS)[None, :]
        left = tl.load(x + token[:, None] * INPUTS + k[None, :], mask=there_token[:, None] & near, other=0.0)
        right = tl.load(data + row[:, None] * INPUTS + k[None, :], mask=there_row[:, None] & near, other=0.0)
        if BYTES:
            found = tl.dot(fp8_values(left), tl.trans(fp8_values(right)), input_precision="ieee")
        else:
            found = tl.dot(left, tl.trans(right), max_num_imprecise_acc=BLOCK_K)
        if GROUPS > 1:
            factor = tl.load(x_scales + at // GROUP, mask=there_token, other=0.0)[:, None]
            found *= factor * tl.load(scales + at // GROUP, mask=there_row, other=0.0)[None, :]
        sums += found
    if GROUPS == 1:
        factor = tl.load(x_scales, mask=there_token, other=0.0)[:, None]
        sums *= factor * tl.load(scales, mask=there_row, other=0.0)[None, :]
    if BIASED:
        sums += tl.load(bias + row, mask=there_row, other=0.0).to(tl.float32)[None, :]
    inside = there_token[:, None] & there_row[None, :]
    tl.store(y + token[:, None] * OUTPUTS + row[None, :], sums.to(OUT), mask=inside)
