"""x · weightᵀ where each row has a weight of its own among several, as the experts of a mixture are.

Rows are in order of their experts, so that a block of rows has one expert. A row's sums go through the inputs in
ascending order: in tiles of one size they are the same bits whatever other rows there are.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.linear import weights_of
from penstock.kernels.cuda.values import product


# Compiled once for all numbers of rows.
@triton.jit(do_not_specialize=["rows"])
def grouped_linear_kernel(
    x,
    data,
    scales,
    zeros,
    bias,
    y,
    block_expert,
    block_first,
    block_end,
    source,
    rows,
    EXPERTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    BY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TYPE: tl.constexpr,
    WIDE: tl.constexpr,
    OUT: tl.constexpr,
):
    """Programs: (block of rows · blocks of outputs). x [any, INPUTS] in TYPE → y [rows, OUTPUTS] in OUT.

    The weights are [EXPERTS · OUTPUTS, INPUTS], as those of `linear_kernel`, and biases as long as these have rows. A
    block has the rows from block_first up to block_end, none where its expert is beyond the last. Row i of y is of row
    source[i] of x, or BY "place" of row i. BY "heads", row i of x and of y has the expert i % EXPERTS, as if each row
    were cut into heads; then there are as many blocks for each as `rows` of each need, and no tables.
    """
    PARTS: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(0) // PARTS
    if BY == "heads":
        expert = (block % EXPERTS).to(tl.int64)
        turn = block // EXPERTS * BLOCK_M + tl.arange(0, BLOCK_M)
        there_row = turn < rows
        row = turn.to(tl.int64) * EXPERTS + expert
    else:
        expert = tl.load(block_expert + block).to(tl.int64)
        row = tl.load(block_first + block).to(tl.int64) + tl.arange(0, BLOCK_M)
        there_row = row < tl.load(block_end + block)
    if expert < EXPERTS:
        column = (tl.program_id(0) % PARTS).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        there_column = column < OUTPUTS
        token = row
        if BY == "source":
            token = tl.load(source + row, mask=there_row, other=0).to(tl.int64)
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for at in range(0, INPUTS, BLOCK_K):
            k = at + tl.arange(0, BLOCK_K)
            left = tl.load(
                x + token[:, None] * INPUTS + k[None, :], mask=there_row[:, None] & (k < INPUTS)[None, :], other=0.0
            )
            right = weights_of(
                data, scales, zeros, expert * OUTPUTS + column, there_column, k, INPUTS, GROUP, KIND, TYPE
            )
            sums += product(left, tl.trans(right), TYPE, WIDE)
        if BIASED:
            sums += tl.load(bias + expert * OUTPUTS + column, mask=there_column, other=0.0).to(tl.float32)[None, :]
        tl.store(
            y + row[:, None] * OUTPUTS + column[None, :],
            sums.to(OUT),
            mask=there_row[:, None] & there_column[None, :],
        )


@triton.jit
def add_experts_kernel(
    made, routed, place, result, WIDTH: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr
):
    """Programs: (row, block of columns). The sum of what a row's experts made, each times its weight, in order.

    made [rows · CHOSEN, WIDTH] in TYPE has a row's i-th expert at place[row · CHOSEN + i]; routed float32
    [rows, 2 · CHOSEN] has the weights behind the indices.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(CHOSEN):
        weight = tl.load(routed + row * 2 * CHOSEN + CHOSEN + at)
        own = tl.load(place + row * CHOSEN + at).to(tl.int64)
        total += weight * tl.load(made + own * WIDTH + column, mask=there, other=0.0).to(tl.float32)
    tl.store(result + row * WIDTH + column, total.to(TYPE), mask=there)
